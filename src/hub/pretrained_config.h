// The JSON files of Hugging Face folders, without torch: config.json and the index of weights in several files.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace strata {

// The parts of config.json that are used here.
struct PretrainedConfig {
  enum class Family { kBert, kRoberta, kGpt2 };
  Family family = Family::kBert;
  int64_t layers = 0, hidden = 0, heads = 0, inner = 0;  // inner: width of the feed-forward layers
  int64_t vocabulary = 0, positions = 0, first_position = 0, types = 0;
  double norm_epsilon = 1e-12;
  std::string activation = "gelu";
  std::vector<std::string> labels;

  bool is_causal() const { return family == Family::kGpt2; }
  int64_t longest() const { return positions - first_position; }  // tokens that a sequence may have
  // Throws Error (kData) that says what was expected.
  static PretrainedConfig from_json(const std::string& text, const std::string& where);
};

// The files that a model.safetensors.index.json names; all lie in its folder. Throws Error (kData).
std::set<std::string> weight_files(const std::string& index, const std::string& where);

}  // namespace strata
