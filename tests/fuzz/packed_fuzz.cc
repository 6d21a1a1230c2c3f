// libFuzzer target: a file that is not compressed is read as it is; a compressed one is unpacked or refused.
#include "refusal.h"
#include "util/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const std::string path = fuzz::memory_file(bytes);
  std::string content;
  fuzz::require(read_raw_file(path) == bytes, "the bytes of the file");
  if (!fuzz::accepts([&] { content = read_file(path); })) return 0;
  const bool packed = bytes.substr(0, 2) == "\x1f\x8b" || bytes.substr(0, 3) == "BZh" ||
                      bytes.substr(0, 4) == "\x28\xb5\x2f\xfd" || bytes.substr(0, 5) == "\xfd\x37zXZ";
  fuzz::require(packed || content == bytes, "a plain file as it is");
  constexpr size_t kMostTimes = 20000;  // bzip2 repeats a byte as often
  fuzz::require(content.size() <= (size + 100) * kMostTimes, "no more bytes than the format can pack");
  return 0;
}
