// Pictures of the heads of a layer on one sequence: attention, and the scores of every level.
#pragma once

#include <torch/torch.h>

#include "model/hkt_attention.h"
#include "strata/tree.h"
#include "util/options.h"

namespace strata {

// The largest side, at most 64, for which this many pictures with their coarser levels stay within a few megabytes.
int64_t picture_side(int64_t pictures);

// The number of tokens per row or column of a picture.
inline int64_t picture_block(int64_t tokens, int64_t side) { return (tokens + side - 1) / side; }

// Per head {"attention": rows, "levels": [rows, ...]}, of at most `side` rows, level l of side / 2^l. A row of a longer
// sequence is the mean over a block of queries, with the attention summed and the scores averaged over blocks of keys;
// null is masked. input: the input of the layer, (tokens, model).
Json hkt_pictures(HktAttentionImpl& layer, const torch::Tensor& input, int64_t side);
Json tree_pictures(torch::nn::Module& layer, const torch::Tensor& input, const Tree& tree, int64_t side);
Json stream_pictures(torch::nn::Module& layer, const torch::Tensor& input, int64_t side);

}  // namespace strata
