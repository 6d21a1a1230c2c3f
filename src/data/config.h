// Which data a run learns from.
#pragma once

#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

struct DataConfig {
  std::string task = "listops";
  std::string data;
  int64_t length = 0;
  int64_t train_rows = 0, valid_rows = 0, test_rows = 0;
  double valid_share = 0.1;
  int64_t data_seed = 1;
  int64_t pairs = 8, questions = 1;
  int64_t image_side = 16;
  int64_t min_length = 16, max_depth = 4, max_args = 5;
  std::string label_column = "label", text_column = "text";
  std::string tokens = "bytes";
  int64_t words = 20000;
  std::string embeddings;                // a Hugging Face folder, with tokens "pieces"
  std::vector<std::string> labels = {};  // of a model that reads a table; empty: those of the training rows. No option
  std::string pieces = {};               // the tokenizer of a model (data/pieces.h); empty: the folder's. No option
};

void declare(OptionTable& table, DataConfig& config);

// With absolute paths, for a record: a relative one would mean another file in another working directory.
DataConfig with_absolute_paths(DataConfig config);

}  // namespace strata
