// libFuzzer target: a config.json of a pretrained model is refused, or describes a model that can be; an index of
// weights is refused, or names files of its own folder. Input that begins with 'i' is an index behind that letter, one
// that begins with 'g' a generation_config.json.
#include <cmath>

#include "hub/pretrained_config.h"
#include "refusal.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (size > 0 && text[0] == 'i') {
    fuzz::accepts([&] {
      for (const std::string& name : weight_files(text.substr(1), "fuzz"))
        fuzz::require(!name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
                          name != "." && name != "..",
                      "a file of the folder");
    });
    return 0;
  }
  if (size > 0 && text[0] == 'g') {
    fuzz::accepts([&] {
      for (const int64_t id : end_tokens(text.substr(1), "fuzz")) fuzz::require(id >= 0 && id <= 1 << 24, "an id");
    });
    return 0;
  }
  fuzz::accepts([&] {
    const PretrainedConfig c = PretrainedConfig::from_json(text, "fuzz");
    constexpr int64_t kMost = int64_t{1} << 26;
    for (const int64_t number : {c.layers, c.hidden, c.heads, c.inner, c.vocabulary, c.positions, c.types})
      fuzz::require(number >= 0 && number <= kMost, "sizes within reason");
    fuzz::require(c.hidden >= 1 && c.heads >= 1 && c.head_size >= 1 && c.layers <= 1000, "heads");
    fuzz::require(c.key_heads >= 1 && c.heads % c.key_heads == 0, "whole groups of heads");
    fuzz::require(c.is_modern() || c.hidden == c.heads * c.head_size, "whole heads");
    if (c.is_modern()) {
      fuzz::require(c.head_size % 2 == 0 && c.head_size <= 256 && c.heads <= 1 << 16, "heads that can be rotated");
      for (const double frequency : c.rotary.frequencies(c.head_size))
        fuzz::require(std::isfinite(frequency) && frequency > 0 && frequency <= 1, "frequencies");
    }
    fuzz::require(c.first_position >= 0 && c.longest() >= 1, "room for a token");
    fuzz::require(std::isfinite(c.norm_epsilon) && c.norm_epsilon >= 0, "an epsilon");
    fuzz::require(c.labels.size() <= std::max<size_t>(10000, size), "labels within reason");
  });
  return 0;
}
