// One run: train, evaluate, keep the best model, test it at the end. This header does not include torch, so that the
// command does not need to.
#pragma once

#include <functional>

#include "train/run_folder.h"

namespace strata {

class SequenceModel;
struct Dataset;
struct ModelCard;

// A line of metrics.jsonl about a model, on rows of a split; null: no line. `--every-epoch` needs one: track_scores of
// src/inspect, a layer above this one.
using EpochTracker = std::function<Json(SequenceModel& model, const ModelCard& card, const Dataset& split)>;

struct TrainCall {
  bool resume = false;
  bool allow_changed_data = false;  // resume on data that is not what the record says
  bool quiet = false;
  EpochTracker tracker = {};
  // Of several processes.
  double timeout = kTimeout;  // seconds after which a rank that does not answer ends the run
  bool shard_optimizer = false;
  static constexpr double kTimeout = 300;
};

// Starts a run in an empty folder, or resumes one whose options are those of `config`. Returns the content of
// result.json. Where environment variables say that this is one of several processes (train/placement.h), they train
// together, and rank 0 alone uses the folder. Throws Error with ExitCode::kInterrupted after a Ctrl-C, when the state
// is saved.
Json train(const RunConfig& config, const RunFolder& folder, const TrainCall& call = {});

}  // namespace strata
