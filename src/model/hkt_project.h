// Queries and keys of all levels, and values, at once: the states of all levels in one matrix, one product for the
// level of tokens and one for all coarser ones. The same mathematics as a filter and projections level by level, in far
// fewer and larger steps.
#pragma once

#include <vector>

#include "torch/pyramid_states.h"

namespace strata {

struct HktProjections {
  torch::Tensor query, key, value;  // weights: (H d, C), (Hk d, C), (Hk d, C)
};

struct Projected {
  std::vector<torch::Tensor> q, k;  // (B, H, ceil(T / 2^l), d), (B, Hk, ceil(T / 2^l), d)
  torch::Tensor v;                  // (B, Hk, T, d)
};

// Whether project_at_once takes them.
bool projects_at_once(const PyramidInput& input, const HktProjections& weights);
// Differentiable, once.
Projected project_at_once(const PyramidInput& input, const HktProjections& weights, int64_t head_size);

}  // namespace strata
