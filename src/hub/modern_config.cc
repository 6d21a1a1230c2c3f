#include "hub/modern_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace strata {
namespace {

constexpr int64_t kMostHeads = 1 << 16, kMostHeadSize = 256;  // of the kernels
constexpr double kMostFactor = 1e6, kMostPositions = 1 << 30;

void check_blend(const ConfigReader& part, const RotaryConfig& rotary, const char* high, const char* low) {
  if (!(rotary.high_factor > rotary.low_factor))
    throw data_error("{}: expected a {} above the {}, got {} and {}", part.where(), high, low, rotary.high_factor,
                     rotary.low_factor);
}

void read_llama3(const ConfigReader& part, RotaryConfig& rotary) {
  rotary.scaling = RotaryConfig::Scaling::kLlama3;
  for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (!part.has(key)) throw data_error("{}: expected {}, found none", part.where(), key);
  }
  rotary.low_factor = part.real("low_freq_factor", 0, 1e-6, kMostFactor);
  rotary.high_factor = part.real("high_freq_factor", 0, 1e-6, kMostFactor);
  rotary.original_positions = part.real("original_max_position_embeddings", 0, 1, kMostPositions);
  check_blend(part, rotary, "high_freq_factor", "low_freq_factor");
}

// positions: those of the model, where the file does not say what it was trained with at first.
void read_yarn(const ConfigReader& part, double positions, RotaryConfig& rotary) {
  rotary.scaling = RotaryConfig::Scaling::kYarn;
  rotary.low_factor = part.real("beta_slow", 1, 1e-6, kMostFactor);
  rotary.high_factor = part.real("beta_fast", 32, 1e-6, kMostFactor);
  rotary.original_positions = part.real("original_max_position_embeddings", positions, 1, kMostPositions);
  rotary.whole_channels = part.flag("truncate", true);
  if (!(rotary.base > 1))
    throw data_error("{}: expected a rope_theta above 1 with yarn, got {}", part.where(), rotary.base);
  check_blend(part, rotary, "beta_fast", "beta_slow");
  auto grown = [&](double weight) { return 0.1 * weight * std::log(rotary.factor) + 1; };
  const double weight = part.real("mscale", 0, 0, kMostFactor), all = part.real("mscale_all_dim", 0, 0, kMostFactor);
  rotary.attention = weight > 0 && all > 0 ? grown(weight) / grown(all) : grown(1);
  rotary.attention = part.real("attention_factor", rotary.attention, 1e-6, kMostFactor);
}

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
  if (type != "linear" && type != "llama3" && type != "yarn")
    throw data_error("{}: expected a rope_type of default, linear, llama3 or yarn, got {}", part.where(), shown(type));
  if (!part.has("factor")) throw data_error("{}: expected a factor, found none", part.where());
  rotary.factor = part.real("factor", 1, 1, kMostFactor);
  rotary.scaling = RotaryConfig::Scaling::kLinear;
  if (type == "llama3") read_llama3(part, rotary);
  if (type == "yarn") read_yarn(part, json.real("max_position_embeddings", 2048, 1, kMostPositions), rotary);
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

double RotaryConfig::kept(double channel, double frequency, double head_size) const {
  // How many times a channel turns within the positions of the first training, and the channel that turns so often.
  const double turns = original_positions * frequency / (2 * std::numbers::pi);
  auto channel_of = [&](double wanted) {
    return head_size * std::log(original_positions / (wanted * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  switch (scaling) {
    case Scaling::kNone:
      return 1;
    case Scaling::kLinear:
      return 0;
    case Scaling::kLlama3:
      return std::clamp((turns - low_factor) / (high_factor - low_factor), 0.0, 1.0);
    case Scaling::kYarn:
      break;
  }
  double first = channel_of(high_factor), last = channel_of(low_factor);
  if (whole_channels) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0);
  last = std::min(last, head_size - 1);
  if (first == last) last += 0.001;  // as transformers does
  return 1 - std::clamp((channel - first) / (last - first), 0.0, 1.0);
}

std::vector<double> RotaryConfig::frequencies(int64_t head_size) const {
  const auto size = static_cast<double>(head_size);
  std::vector<double> all;
  for (int64_t c = 0; c < head_size / 2; ++c) {
    const auto channel = static_cast<double>(c);
    const double frequency = std::pow(base, -2 * channel / size), whole = kept(channel, frequency, size);
    all.push_back(whole * frequency + (1 - whole) * frequency / factor);
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
