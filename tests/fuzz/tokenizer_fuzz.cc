// libFuzzer target: a tokenizer.json is refused or read, and then takes any text: every token has an id and a place
// inside of it. The text stands behind the first zero byte.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tokenizer/tokenizer.h"
#include "util/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  const std::string json = all.substr(0, zero), text = zero == std::string::npos ? "a B\xc3" : all.substr(zero + 1);
  try {
    const strata::Tokenizer tokenizer = strata::Tokenizer::from_json(json, "fuzz");
    const strata::Encoding encoding = tokenizer.encode(text);
    if (encoding.ids.size() != encoding.places.size()) std::abort();
    for (const strata::TextRange& place : encoding.places) {
      if (place.begin < 0 || place.begin > place.end || place.end > static_cast<int64_t>(text.size())) std::abort();
    }
    tokenizer.decode(encoding.ids);
  } catch (const strata::Error&) {
  }
  return 0;
}
