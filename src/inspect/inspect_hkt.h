// One layer of HKT (or flat) attention under the theory.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "model/hkt_attention.h"
#include "util/options.h"

namespace strata {

// inputs: what the layer read for each sequence, (tokens, model). Returns one object per head.
Json inspect_hkt_layer(HktAttentionImpl& layer, const std::vector<torch::Tensor>& inputs);

}  // namespace strata
