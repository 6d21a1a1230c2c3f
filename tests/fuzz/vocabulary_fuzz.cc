// libFuzzer target: the older files of a tokenizer (vocab.txt, or vocab.json and merges.txt, beside
// tokenizer_config.json) are refused or read, and then take any text: what stands before the first file.
#include "refusal.h"
#include "tokenizer_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  static const std::filesystem::path folder = fuzz::memory_folder("model");
  const fuzz::Files input({reinterpret_cast<const char*>(data), size});
  fuzz::write_files(input, folder, {"vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json"});
  fuzz::accepts([&] { fuzz::check_tokenizer(Tokenizer::load(folder), input.head); });
  return 0;
}
