// What an injection costs and saves, measured on data: `strata inject`. This header does not include torch, so that the
// command does not need to.
#pragma once

#include <string>
#include <vector>

#include "util/options.h"
#include "util/progress.h"

namespace strata {

struct InjectOptions {
  std::string model;               // a Hugging Face folder, or a run's
  std::string train, test, texts;  // labelled, labelled, unlabelled; any may be empty
  std::string label_column = "label", text_column = "text";
  std::string layers = "auto";       // or late, or numbers from 0
  std::string tree = "best";         // or sentences, balanced, windows
  int64_t branching = 16;            // largest number of children of a family; not used by "best"
  double cut = 0.4;                  // auto: share of the attention of all layers to save
  double budget = 0.2;               // largest cost of an injected layer, relative to flat attention
  bool approximate_special = false;  // special tokens attend by the tree as well
  int64_t length = 0, batch = 16;
  int64_t train_rows = 5000, test_rows = 1000, text_rows = 64;
  int64_t seed = 1;  // of the choice of rows
  int64_t threads = 0;
  bool curve = true, times = true;
  bool check_digest = true;                               // refuse weights that differ from the digest in their file
  std::vector<int64_t> lengths = {128, 512, 2048, 8192};  // to measure time at
};

void declare(OptionTable& table, InjectOptions& options);  // all but the model

// All results, as docs/INJECT.md describes them. Throws data and usage errors.
Json run_injection(const InjectOptions& options, Progress& progress);

}  // namespace strata
