// What the scores of a layer on a hierarchy are made of, on one sequence.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "model/hsa_attention.h"
#include "model/strata_attention.h"
#include "strata/status.h"
#include "theory/matrix.h"

namespace strata {

// All float64 and dense.
struct LayerScores {
  std::vector<torch::Tensor> q, k;  // per level: (1, H, rows, d), (1, Hk, rows, d)
  torch::Tensor level_weights;      // (H, levels)
  torch::Tensor positions;          // the layer's table; undefined: none
  int64_t heads() const { return q[0].size(1); }
  int64_t tokens() const { return q[0].size(2); }
};

// layer: HsaAttention or StrataAttention; input: (tokens, model).
LayerScores layer_scores(torch::nn::Module& layer, const torch::Tensor& input);

// A (tokens, tokens) matrix of every head; fill(head, numbers) returns a Status.
template <class Fill>
std::vector<Matrix> head_matrices(int64_t heads, int64_t tokens, const Fill& fill) {
  std::vector<Matrix> matrices;
  for (int64_t h = 0; h < heads; ++h) {
    Matrix matrix(tokens, tokens);
    const Status status = fill(h, matrix.data());
    TORCH_CHECK(status.ok(), status.message());
    matrices.push_back(std::move(matrix));
  }
  return matrices;
}

// How a layer without a tree ties its keys.
struct StreamForm {
  int64_t branching, near;
  bool both_sides;
};
bool has_trees(const torch::nn::Module& layer);  // of the same two
StreamForm stream_form(const torch::nn::Module& layer);

}  // namespace strata
