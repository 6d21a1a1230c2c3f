// One layer of HSA attention on trees: where its mass goes, how far it is from softmax, and whether another tree would
// do better.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "model/hsa_attention.h"
#include "strata/tree.h"
#include "theory/matrix.h"
#include "util/options.h"

namespace strata {

// inputs: what the layer read for each sequence, (tokens, model), with the tree of each. Returns one object per head,
// and the trees compared.
Json inspect_hsa_layer(HsaAttentionImpl& layer, const std::vector<torch::Tensor>& inputs,
                       const std::vector<std::shared_ptr<const Tree>>& trees);

// The attention of every head on one sequence, (tokens, tokens).
std::vector<Matrix> hsa_attention_matrices(HsaAttentionImpl& layer, const torch::Tensor& input, const Tree& tree);

}  // namespace strata
