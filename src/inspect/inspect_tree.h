// The theory on one layer of HSA or Strata attention on trees: the mass per depth, the gap to softmax, or to HKT, and
// the gap of other trees.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "inspect/layer_scores.h"
#include "strata/tree.h"
#include "theory/matrix.h"
#include "util/options.h"

namespace strata {

// inputs: the input of the layer for each sequence, (tokens, model), with its tree. Returns one object per head, with
// the trees that were compared.
Json inspect_tree_layer(torch::nn::Module& layer, const std::vector<torch::Tensor>& inputs,
                        const std::vector<std::shared_ptr<const Tree>>& trees);

// The attention of every head on one sequence, (tokens, tokens).
std::vector<Matrix> tree_attention_matrices(torch::nn::Module& layer, const torch::Tensor& input, const Tree& tree);

}  // namespace strata
