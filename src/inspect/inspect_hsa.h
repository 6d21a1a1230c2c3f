// One layer of HSA attention on trees: where its mass goes, how far it is from softmax, and whether another tree would
// do better.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "model/hsa_attention.h"
#include "strata/tree.h"
#include "util/options.h"

namespace strata {

// inputs: what the layer read for each sequence, (tokens, model), with the tree of each. Returns one object per head,
// and the trees compared.
Json inspect_hsa_layer(HsaAttentionImpl& layer, const std::vector<torch::Tensor>& inputs,
                       const std::vector<std::shared_ptr<const Tree>>& trees);

}  // namespace strata
