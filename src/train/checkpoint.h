// The state of a training run on disk.
#pragma once

#include "model/model_file.h"
#include "train/adamw.h"
#include "train/run_state.h"

namespace strata {

// Everything that a run needs to continue to the same bits: weights, the moments of AdamW (whose steps it adds to the
// state), and where the run stands. The file is renamed into place, so that it is always complete.
void save_training(const fs::path& path, AdamW& optimizer, const ModelCard& card, RunState state);
// Throws an output error if the file is not a whole checkpoint of this model.
RunState load_training(const fs::path& path, SequenceModel& model, AdamW& optimizer, const ModelCard& card);

}  // namespace strata
