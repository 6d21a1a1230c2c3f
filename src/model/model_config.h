// The options of a sequence model, and the shape that its task requires.
#pragma once

#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

struct ModelConfig {
  std::string attention = "hkt";
  int64_t layers = 2, model_size = 64, heads = 4, ffn = 4;
  std::string positions = "learned", pooling = "mean";
  double dropout = 0.1;
  // HKT
  int64_t levels = 3, taps = 3;
  std::string filters = "depthwise", projections = "shared";
  bool input_filter = false, psd = false;
  // HSA
  std::string tree = "task";
  int64_t branching = 16, near = 2;
  std::string sibling_positions = "bias";
  bool normalize = false;
};

struct ModelShape {
  int64_t vocabulary = 0;
  int64_t outputs = 0;  // classes, or the vocabulary again for a language model
  int64_t length = 0;   // tokens at most
  bool next_token = false;
  int64_t tables = 1, places = 16;  // of HSA's sibling positions
};

// The groups of the options that belong to an attention.
inline constexpr const char* kLevelOptions = "Levels: HKT and Strata attention";
inline constexpr const char* kTreeOptions = "Trees: HSA and Strata attention";

// The names that --attention takes; src/model/attention.h has what belongs to a name.
std::vector<std::string>& attention_names();

void declare(OptionTable& table, ModelConfig& config);
void declare(OptionTable& table, ModelShape& shape);  // not for the command line: for the record in a checkpoint

}  // namespace strata
