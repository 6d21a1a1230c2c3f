// The theory on one layer of HKT (or flat) attention.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "model/hkt_attention.h"
#include "util/options.h"

namespace strata {

// inputs: the input of the layer for each sequence, (tokens, model). Returns one object per head.
Json inspect_hkt_layer(HktAttentionImpl& layer, const std::vector<torch::Tensor>& inputs);

}  // namespace strata
