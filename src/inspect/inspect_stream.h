// The theory on one layer of attention over a hierarchy without a tree, streaming HSA and the streaming and both-sided
// forms of Strata attention: the divergence from HKT, and what bounds it, for the layer's own b and n and for others.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "inspect/layer_scores.h"
#include "theory/matrix.h"
#include "util/options.h"

namespace strata {

// inputs: the input of the layer for each sequence, (tokens, model). Returns one object per head.
Json inspect_stream_layer(torch::nn::Module& layer, const std::vector<torch::Tensor>& inputs);

// The attention of every head on one sequence, (tokens, tokens), without position terms.
std::vector<Matrix> stream_attention_matrices(torch::nn::Module& layer, const torch::Tensor& input);

}  // namespace strata
