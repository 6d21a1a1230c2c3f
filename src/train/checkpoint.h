// The state of a training run on disk.
#pragma once

#include "model/model_file.h"
#include "train/adamw.h"

namespace strata {

// Everything a run needs to go on to the same bits: weights, AdamW's moments, and the counters in `state`. One file,
// put in place by a rename, so that it is always whole.
void save_training(const fs::path& path, AdamW& optimizer, const ModelCard& card, const Json& state);
Json load_training(const fs::path& path, SequenceModel& model, AdamW& optimizer, const ModelCard& card);

}  // namespace strata
