// Token embeddings whose gradient has the same bits from run to run, on a GPU too.
#pragma once

#include <torch/torch.h>

namespace strata {

// Rows of `weight` (vocabulary, size) at `tokens` (any shape): (tokens..., size). The gradient of a row sums over its
// tokens in a fixed order; torch's own adds them atomically on a GPU, in whatever order they come.
torch::Tensor embed_tokens(const torch::Tensor& weight, const torch::Tensor& tokens);

}  // namespace strata
