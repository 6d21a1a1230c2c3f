// libFuzzer target: a config.json of a pretrained model is refused, or describes a model that can be; an index of
// weights is refused, or names files of its own folder. Input that begins with 'i' is an index behind that letter.
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
  fuzz::accepts([&] {
    const PretrainedConfig c = PretrainedConfig::from_json(text, "fuzz");
    constexpr int64_t kMost = int64_t{1} << 26;
    for (const int64_t number : {c.layers, c.hidden, c.heads, c.inner, c.vocabulary, c.positions, c.types})
      fuzz::require(number >= 0 && number <= kMost, "sizes within reason");
    fuzz::require(c.hidden >= 1 && c.heads >= 1 && c.hidden % c.heads == 0 && c.layers <= 1000, "whole heads");
    fuzz::require(c.first_position >= 0 && c.longest() >= 1, "room for a token");
    fuzz::require(std::isfinite(c.norm_epsilon) && c.norm_epsilon >= 0, "an epsilon");
    fuzz::require(c.labels.size() <= std::max<size_t>(10000, size), "labels within reason");
  });
  return 0;
}
