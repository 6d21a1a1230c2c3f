// The attention of a model while it is trained: lines of metrics.jsonl beside loss and accuracy.
#pragma once

#include <memory>
#include <vector>

#include "model/hkt_attention.h"
#include "model/model_file.h"

namespace strata {

// The layers of a model that attend by HKT or flat attention.
std::vector<std::shared_ptr<HktAttentionImpl>> hkt_layers(const SequenceModel& model);

// {"kind": "weights", "layers": [layer][head][level]}, the convex weights; null for a model with a single level.
Json track_level_weights(const SequenceModel& model);

}  // namespace strata
