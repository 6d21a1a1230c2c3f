// The JSON files of Hugging Face folders, without torch: config.json, generation_config.json and the index of weights
// in several files.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace strata {

// Rotary positions of Llama and Qwen2. Channels c and c + head_size / 2 turn by position * frequency(c).
struct RotaryConfig {
  enum class Scaling {
    kNone,
    kLinear,  // all frequencies / factor
    kLlama3,  // slow ones / factor, fast ones as they are, a blend between them
    kYarn,    // the same, blended over channels instead of frequencies, and rotated heads are multiplied by `attention`
  };
  double base = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;
  double low_factor = 1, high_factor = 4;  // turns within original_positions at which the blend begins and ends
  double original_positions = 8192;
  bool whole_channels = true;  // kYarn: the blend begins and ends at whole channels
  double attention = 1;        // kYarn

  std::vector<double> frequencies(int64_t head_size) const;  // head_size / 2 of them

 private:
  double kept(double channel, double frequency, double head_size) const;  // how much of a frequency is not scaled
};

// The parts of config.json that are used here.
struct PretrainedConfig {
  enum class Family { kBert, kRoberta, kGpt2, kLlama, kQwen2 };
  Family family = Family::kBert;
  int64_t layers = 0, hidden = 0, heads = 0, inner = 0;  // inner: width of the feed-forward layers
  int64_t key_heads = 0, head_size = 0;                  // key_heads: as many as heads, but for grouped heads
  int64_t vocabulary = 0, positions = 0, first_position = 0, types = 0;
  double norm_epsilon = 1e-12;
  std::string activation = "gelu";
  std::vector<std::string> labels;
  // Llama and Qwen2
  RotaryConfig rotary;
  bool query_bias = false, out_bias = false, ffn_bias = false;  // query_bias: also of keys and values
  bool tied = false;                                            // the head has the weights of the embedding
  // Language models
  int64_t begin = -1;         // the token before a text; -1: none
  std::vector<int64_t> ends;  // the tokens that end a text

  bool is_modern() const { return family == Family::kLlama || family == Family::kQwen2; }
  bool is_causal() const { return family == Family::kGpt2 || is_modern(); }
  int64_t longest() const { return positions - first_position; }  // tokens that a sequence may have
  // Throws Error (kData) that says what was expected.
  static PretrainedConfig from_json(const std::string& text, const std::string& where);
};

// The tokens that end a text, of a config.json or generation_config.json: one, several or none. Throws Error (kData).
std::vector<int64_t> end_tokens(const std::string& text, const std::string& where);

// The files that a model.safetensors.index.json names; all lie in its folder. Throws Error (kData).
std::set<std::string> weight_files(const std::string& index, const std::string& where);

}  // namespace strata
