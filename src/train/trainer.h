// One run: train, evaluate as it goes, keep the best model, test it at the end.
#pragma once

#include "train/config.h"

namespace strata {

// The files of a run's folder:
//   run.json           its record (train/record.h)
//   metrics.jsonl      its course
//   last.safetensors   the training state, to go on from
//   best.safetensors   the best model by the validation split
//   result.json        written when it is finished
struct RunFolder {
  fs::path root;
  fs::path run() const { return root / "run.json"; }
  fs::path last() const { return root / "last.safetensors"; }
  fs::path best() const { return root / "best.safetensors"; }
  fs::path result() const { return root / "result.json"; }
};

// Starts a run in an empty folder, or goes on with one whose options are those of `config`. Returns what result.json
// holds. Throws Error with ExitCode::kInterrupted after a Ctrl-C, when everything is saved.
Json train(const RunConfig& config, const RunFolder& folder, bool resume, bool quiet);

// The options a run was started with.
RunConfig read_run_config(const RunFolder& folder);

}  // namespace strata
