// The folder of a run.
#pragma once

#include "train/config.h"

namespace strata {

// Its files:
//   run.json           its record (train/record.h)
//   metrics.jsonl      its metrics over time
//   last.safetensors   the training state, to continue from
//   best.safetensors   the best model by the validation split
//   result.json        written when the run is finished
struct RunFolder {
  fs::path root;
  fs::path run() const { return root / "run.json"; }
  fs::path last() const { return root / "last.safetensors"; }
  fs::path best() const { return root / "best.safetensors"; }
  fs::path result() const { return root / "result.json"; }
};

// What run.json holds. Throws an output error when there is none, or it is damaged.
Json read_run(const RunFolder& folder);
// What result.json holds, with the scores of a finished run. Throws an output error when it is damaged.
Json read_result(const RunFolder& folder);
// The options that the run was started with.
RunConfig read_run_config(const RunFolder& folder);

}  // namespace strata
