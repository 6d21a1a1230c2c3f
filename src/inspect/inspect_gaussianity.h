// Mardia's tests over the sequences that a layer reads, and how they go over training.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "model/hkt_attention.h"
#include "theory/matrix.h"
#include "util/options.h"

namespace strata {

// Sequences are tested one by one, never pooled: medians over them, and how many are rejected. Where none can be
// tested, "problem" says why.
Json gaussianity_over(const std::vector<Matrix>& sequences);

// The short form for every epoch of a training: the tests of the scores, [head][level], without quantiles.
Json track_gaussianity(HktAttentionImpl& layer, const std::vector<torch::Tensor>& inputs);

}  // namespace strata
