// The options of a sequence model, and the shape that its task requires.
#pragma once

#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

struct ModelConfig {
  std::string attention = "hkt", block = "classic";
  int64_t layers = 2, model_size = 64, heads = 4, key_heads = 0, ffn = 4;  // key_heads: 0 is as many as heads
  std::string positions = "auto", pooling = "mean";
  int64_t window = 0;  // of flat attention and HKT; 0: all tokens
  double dropout = 0.1;
  // HKT
  int64_t levels = 3, taps = 3;
  std::string filters = "depthwise", projections = "shared";
  std::string level_weights = "learned";
  bool input_filter = false, psd = false;
  // HSA
  std::string tree = "task";
  int64_t branching = 16, near = 2;
  std::string sibling_positions = "bias";
  bool normalize = false;

  bool is_modern() const { return block == "modern"; }
  int64_t key_head_count() const { return key_heads == 0 ? heads : key_heads; }
  // Channels between the matrices of the feed-forward layers. A modern block has three of them, not two: at 2/3 of the
  // width it has as many weights. Rounded up to a multiple of 8.
  int64_t ffn_width() const { return is_modern() ? (2 * ffn * model_size + 23) / 24 * 8 : ffn * model_size; }
};

// With "auto" replaced by what it means for the block.
ModelConfig resolved(ModelConfig config);

struct ModelShape {
  int64_t vocabulary = 0;
  int64_t outputs = 0;  // classes, or the vocabulary again for a language model
  int64_t length = 0;   // tokens at most
  bool next_token = false;
  int64_t tables = 1, places = 16;  // of HSA's sibling positions
  int64_t frozen = 0;               // channels of frozen embeddings, which a linear map follows; 0: learned ones
};

// The groups of the options that belong to an attention.
inline constexpr const char* kLevelOptions = "Levels: HKT and Strata attention";
inline constexpr const char* kTreeOptions = "Trees: HSA and Strata attention";

// The names that --attention takes; src/model/attention.h has what belongs to a name.
std::vector<std::string>& attention_names();

void declare(OptionTable& table, ModelConfig& config);
void declare(OptionTable& table, ModelShape& shape);  // not for the command line: for the record in a checkpoint

}  // namespace strata
