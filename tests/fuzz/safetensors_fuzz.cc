// libFuzzer target: whatever the bytes of a safetensors file, it is refused with words, or its tensors are what it
// holds, byte for byte, read or mapped. Input that starts with '{' is one line of header and the data behind it, and
// gets its length in front, so that changes to the header are tried; any other input is the file itself.
#include <c10/util/Logging.h>

#include <cstring>

#include "fuzz.h"
#include "model/safetensors.h"

namespace {

using strata::fuzz::require;

// Sizes whose product, also without the zeros among them, is a number: torch multiplies them for the strides.
bool sound(at::IntArrayRef sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(product, size > 0 ? size : 1, &product)) return false;
  }
  return true;
}

template <class Read>
bool reads(const Read& read, const std::string& path, strata::SafetensorsFile* file) {
  try {
    *file = read(path, strata::DigestCheck::kIfStored);
    return true;
  } catch (const c10::Error& error) {  // any other exception gets through, and ends the program
    const std::string message = error.what_without_backtrace();
    strata::fuzz::check_message(message);
    require(message.find(path) != std::string::npos, "the name of the file in its refusal");
    return false;
  }
}

}  // namespace

// A refusal would carry a trace of the stack, which takes most of the time.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  c10::SetStackTraceFetcher([] { return std::string(); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size > 0 && bytes[0] == '{') {
    const size_t line = bytes.find('\n'), length = line == std::string::npos ? size : line;
    bytes.erase(length, 1);
    for (int byte = 7; byte >= 0; --byte) bytes.insert(bytes.begin(), static_cast<char>(length >> (8 * byte)));
  }
  const std::string path = strata::fuzz::memory_file(bytes);
  strata::SafetensorsFile file, mapped;
  const bool read = reads(strata::load_safetensors, path, &file);
  require(reads(strata::map_safetensors, path, &mapped) == read);
  if (!read) return 0;
  require(file.metadata == mapped.metadata && file.tensors.size() == mapped.tensors.size());
  size_t at = bytes.size();
  for (size_t n = file.tensors.size(); n-- > 0;) {
    const auto& [name, tensor] = file.tensors[n];
    const torch::Tensor& other = mapped.tensors[n].second;
    require(name == mapped.tensors[n].first && tensor.sizes() == other.sizes() && tensor.dtype() == other.dtype());
    require(sound(tensor.sizes()) && tensor.is_contiguous() && other.is_contiguous() && tensor.nbytes() <= at);
    at -= tensor.nbytes();
    require(tensor.nbytes() == 0 || (std::memcmp(tensor.data_ptr(), &bytes[at], tensor.nbytes()) == 0 &&
                                     std::memcmp(other.data_ptr(), &bytes[at], tensor.nbytes()) == 0));
  }
  return 0;
}
