// Mardia's tests on the sequences that a layer reads.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "model/hkt_attention.h"
#include "theory/matrix.h"
#include "util/options.h"

namespace strata {

// Sequences are tested one by one, never pooled: medians over them, and the share that is rejected. If none can be
// tested, "problem" says why.
Json gaussianity_over(const std::vector<Matrix>& sequences);

// The short form for --every-epoch: the tests of the scores, [head][level], without quantiles.
Json track_gaussianity(HktAttentionImpl& layer, const std::vector<torch::Tensor>& inputs);

}  // namespace strata
