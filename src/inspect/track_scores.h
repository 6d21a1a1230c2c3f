// The scores of a model while it is trained, as `strata train --every-epoch` writes them to metrics.jsonl. This header
// does not include torch, so that the command does not need to.
#pragma once

#include "util/options.h"

namespace strata {

class SequenceModel;
struct Dataset;
struct ModelCard;

// {"kind": "gaussianity", "rows", "layers": [layer][head][level]}, Mardia's tests of the scores on the first rows of a
// split (docs/theory/gaussianity.md); null for a model without scores per level.
Json track_scores(SequenceModel& model, const ModelCard& card, const Dataset& split);

}  // namespace strata
