// The theory on one layer of HSA attention on trees: the mass per depth, the gap to softmax, and the gap of other
// trees.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "model/hsa_attention.h"
#include "strata/tree.h"
#include "theory/matrix.h"
#include "util/options.h"

namespace strata {

// inputs: the input of the layer for each sequence, (tokens, model), with its tree. Returns one object per head, with
// the trees that were compared.
Json inspect_hsa_layer(HsaAttentionImpl& layer, const std::vector<torch::Tensor>& inputs,
                       const std::vector<std::shared_ptr<const Tree>>& trees);

// The attention of every head on one sequence, (tokens, tokens).
std::vector<Matrix> hsa_attention_matrices(HsaAttentionImpl& layer, const torch::Tensor& input, const Tree& tree);

}  // namespace strata
