// libFuzzer target: a tokenizer.json is refused or read, and then takes any text. The text stands behind the first zero
// byte.
#include "refusal.h"
#include "tokenizer_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  const std::string json = all.substr(0, zero), text = zero == std::string::npos ? "a B\xc3" : all.substr(zero + 1);
  strata::fuzz::accepts([&] { strata::fuzz::check_tokenizer(strata::Tokenizer::from_json(json, "fuzz"), text); });
  return 0;
}
