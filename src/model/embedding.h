// Token embeddings whose gradient has the same bits from run to run, also on a GPU.
#pragma once

#include <torch/torch.h>

namespace strata {

// Rows of `weight` (vocabulary, size) at `tokens` (any shape): (tokens..., size). The gradient of a row sums over its
// tokens in a fixed order; torch's own embedding adds them atomically on a GPU, in any order.
torch::Tensor embed_tokens(const torch::Tensor& weight, const torch::Tensor& tokens);

}  // namespace strata
