// Where a run stands: what a checkpoint holds beside weights and moments. Without torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "util/options.h"

namespace strata {

struct RunState {
  int64_t step = 0, best_step = -1, stale = 0;  // stale: evaluations since the best one
  bool stopped_early = false;
  double train_seconds = 0;
  struct Scores {
    double loss = 0, accuracy = 0;
    int64_t rows = 0;
  } best;
  struct Sums {  // since the last line of metrics.jsonl
    double loss = 0, correct = 0;
    int64_t counted = 0, tokens = 0;
    double start_seconds = 0;
  } window;
  std::map<std::string, int64_t> adamw_steps;  // of the parameters that have moments

  Json to_json() const;
  // Throws an output error if a value is missing, or is none that a run writes.
  static RunState from_json(const Json& json, const std::string& where);
};

}  // namespace strata
