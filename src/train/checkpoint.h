// The state of a training run on disk.
#pragma once

#include "model/model_file.h"
#include "train/adamw.h"

namespace strata {

// Everything that a run needs to continue to the same bits: weights, the moments of AdamW, and the counters in `state`.
// The file is renamed into place, so that it is always complete.
void save_training(const fs::path& path, AdamW& optimizer, const ModelCard& card, const Json& state);
Json load_training(const fs::path& path, SequenceModel& model, AdamW& optimizer, const ModelCard& card);

}  // namespace strata
