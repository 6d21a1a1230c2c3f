// One HKT (or flat) layer on one sequence, head by head, as the matrices of the theory.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "model/hkt_attention.h"
#include "theory/error.h"

namespace strata {

struct HktHead {
  std::vector<Matrix> q, k;  // per level, (T_l, d)
  LevelScores scores;
};

class HktRun {
 public:
  HktRun(HktAttentionImpl& layer, const torch::Tensor& input);  // input: (tokens, model)
  HktHead head(int64_t h) const;
  const std::vector<Matrix>& states() const { return states_; }  // per level, (T_l, model)

 private:
  bool causal_;
  int64_t queries_per_key_;
  torch::Tensor weights_;             // (H, L)
  std::vector<torch::Tensor> q_, k_;  // per level, (H, T_l, d)
  std::vector<Matrix> states_;
};

Matrix to_matrix(const torch::Tensor& t);  // of two dimensions

}  // namespace strata
