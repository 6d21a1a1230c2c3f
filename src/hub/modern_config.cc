#include "hub/modern_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace strata {
namespace {

constexpr int64_t kMostHeads = 1 << 16, kMostHeadSize = 256;  // of the kernels
constexpr double kMostFactor = 1e6, kMostPositions = 1 << 30;

// Files have rope_theta and rope_scaling, or, of transformers 5, both in rope_parameters.
RotaryConfig read_rotary(const ConfigReader& json) {
  RotaryConfig rotary;
  const ConfigReader part = json.part(json.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  rotary.base = part.real("rope_theta", json.real("rope_theta", rotary.base, 1, 1e12), 1, 1e12);
  for (const ConfigReader* reader : {&json, &part}) {
    if (reader->real("partial_rotary_factor", 1, 0, 1) != 1)
      throw data_error("{}: partial_rotary_factor: expected 1, because all channels are rotated", reader->where());
  }
  const std::string type = part.word("rope_type", part.word("type", "default"));
  if (type == "default") return rotary;
  if (type != "linear" && type != "llama3")
    throw data_error("{}: expected a rope_type of default, linear or llama3, got {}", part.where(), shown(type));
  if (!part.has("factor")) throw data_error("{}: expected a factor, found none", part.where());
  rotary.scaling = type == "linear" ? RotaryConfig::Scaling::kLinear : RotaryConfig::Scaling::kLlama3;
  rotary.factor = part.real("factor", 1, 1, kMostFactor);
  if (rotary.scaling == RotaryConfig::Scaling::kLinear) return rotary;
  for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (!part.has(key)) throw data_error("{}: expected {}, found none", part.where(), key);
  }
  rotary.low_factor = part.real("low_freq_factor", 0, 1e-6, kMostFactor);
  rotary.high_factor = part.real("high_freq_factor", 0, 1e-6, kMostFactor);
  rotary.original_positions = part.real("original_max_position_embeddings", 0, 1, kMostPositions);
  if (!(rotary.high_factor > rotary.low_factor))
    throw data_error("{}: expected a high_freq_factor above the low_freq_factor, got {} and {}", part.where(),
                     rotary.high_factor, rotary.low_factor);
  return rotary;
}

// Layers that see only a window of tokens before them are not supported.
void check_full_attention(const ConfigReader& json) {
  bool windows = json.flag("use_sliding_window", false);
  if (json.has("layer_types") && json.json()["layer_types"].is_array()) {
    windows = false;
    for (const auto& type : json.json()["layer_types"]) windows = windows || type != "full_attention";
  }
  if (windows)
    throw data_error("{}: expected full attention in every layer, got sliding windows (use_sliding_window)",
                     json.where());
}

}  // namespace

std::vector<double> RotaryConfig::frequencies(int64_t head_size) const {
  std::vector<double> all;
  for (int64_t c = 0; c < head_size / 2; ++c) {
    const double frequency = std::pow(base, -2.0 * static_cast<double>(c) / static_cast<double>(head_size));
    // How many times a channel turns within the positions of the first training.
    const double turns = original_positions * frequency / (2 * std::numbers::pi);
    double kept = 0;  // 1: not scaled
    if (scaling == Scaling::kNone) kept = 1;
    if (scaling == Scaling::kLlama3) kept = std::clamp((turns - low_factor) / (high_factor - low_factor), 0.0, 1.0);
    all.push_back(kept * frequency + (1 - kept) * frequency / factor);
  }
  return all;
}

void read_modern_config(const ConfigReader& json, PretrainedConfig& c) {
  const bool qwen2 = c.family == PretrainedConfig::Family::kQwen2;
  c.key_heads = json.number("num_key_value_heads", c.heads, kMostHeads);
  if (c.heads < 1 || c.heads > kMostHeads || c.key_heads < 1 || c.heads % c.key_heads != 0)
    throw data_error("{}: expected num_key_value_heads that divide num_attention_heads, got {} and {}", json.where(),
                     c.key_heads, c.heads);
  if (!json.has("head_dim") && (c.hidden < 1 || c.hidden % c.heads != 0))
    throw data_error("{}: expected a hidden size that is a multiple of the heads, got {} and {}", json.where(),
                     c.hidden, c.heads);
  c.head_size = json.number("head_dim", c.hidden / c.heads);
  if (c.hidden < 1 || c.head_size < 2 || c.head_size % 2 != 0 || c.head_size > kMostHeadSize)
    throw data_error("{}: expected heads of an even number of channels, 2 to {}, got {}", json.where(), kMostHeadSize,
                     c.head_size);
  c.norm_epsilon = json.real("rms_norm_eps", 1e-6, 0, 1);
  c.activation = json.word("hidden_act", "silu");
  if (c.activation != "silu")
    throw data_error("{}: expected an activation of silu, got {}", json.where(), shown(c.activation));
  c.rotary = read_rotary(json);
  check_full_attention(json);
  c.tied = json.flag("tie_word_embeddings", false);
  c.query_bias = qwen2 || json.flag("attention_bias", false);
  c.out_bias = !qwen2 && json.flag("attention_bias", false);
  c.ffn_bias = !qwen2 && json.flag("mlp_bias", false);
}

}  // namespace strata
