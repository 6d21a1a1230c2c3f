// What the attention of a model does while it is trained: lines of metrics.jsonl beside loss and accuracy.
#pragma once

#include "data/dataset.h"
#include "model/model_file.h"

namespace strata {

// {"kind": "weights", "layers": [layer][head][level]}, the convex weights; null of a model without several levels.
Json track_level_weights(const SequenceModel& model);

// {"kind": "gaussianity", "rows", "layers": [layer][head][level]}, Mardia's tests of the scores on the first rows of a
// split (docs/theory/gaussianity.md); null of a model without scores per level.
Json track_scores(SequenceModel& model, const ModelCard& card, const Dataset& split);

}  // namespace strata
