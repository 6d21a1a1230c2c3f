// Time and memory of an injection, by length, and its FLOPs.
#pragma once

#include <string>
#include <vector>

#include "inject/selection.h"
#include "util/options.h"

namespace strata {

// FLOPs of a forward pass up to the last hidden states: those of attention, and those of the projections and the
// feed-forward parts. Norms, activations and embeddings are not counted.
struct ForwardFlops {
  double attention = 0, projections = 0;
  double all() const { return attention + projections; }
};
// tokens: of all sequences; costs: of one pass, as inject_hsa counts them.
ForwardFlops forward_flops(const PretrainedConfig& config, int64_t tokens, const std::vector<AttentionCost>& costs);

// Per length {"tokens", "tree", "operator", "layer", "model"}, the last three with medians in milliseconds of softmax
// ("flat_ms") and HSA ("hsa_ms") and their "ratio", side by side after a warm-up. "operator": q, k, v in, output out.
// "layer": a whole one, projections and feed-forward part as well (the model with every layer injected, over the number
// of layers). "model": the selection's layers injected on this tree, with the peak memory that one pass adds, in bytes.
// Lengths beyond the host's positions have only "operator".
Json time_by_length(Host& host, const InjectionSelection& selection, const TreeRecipe& recipe,
                    const std::vector<int64_t>& lengths, double seconds_each);

}  // namespace strata
