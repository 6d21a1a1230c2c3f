// Time and memory of an injection, by length.
#pragma once

#include <string>
#include <vector>

#include "inject/selection.h"
#include "util/options.h"

namespace strata {

// Per length {"tokens", "tree", "operator", "layer", "model"}, the last three with medians in milliseconds of softmax
// ("flat_ms") and HSA ("hsa_ms") and their "ratio", side by side after a warm-up. "operator": q, k, v in, output out.
// "layer": a whole one, projections and feed-forward part as well (the model with every layer injected, over the number
// of layers). "model": the selection's layers injected on this tree, with the peak memory that one pass adds, in bytes.
// Lengths beyond the host's positions have only "operator".
Json time_by_length(Host& host, const InjectionSelection& selection, const TreeRecipe& recipe,
                    const std::vector<int64_t>& lengths, double seconds_each);

}  // namespace strata
