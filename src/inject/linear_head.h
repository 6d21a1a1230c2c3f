// A linear classifier on frozen features.
#pragma once

#include <torch/torch.h>

namespace strata {

// logits = ((x - mean) / deviation) W + b
struct LinearHead {
  torch::Tensor mean, deviation, weight, bias;
  double l2 = 0;  // strength of the penalty that was chosen

  torch::Tensor operator()(const torch::Tensor& features) const;  // (n, channels) to (n, classes)
};

// Multinomial logistic regression: minimises mean cross-entropy + l2 |W|^2 by L-BFGS in float64. l2 is the one of 1e-4,
// 1e-3, .. 1 with the least cross-entropy on every fifth row when fitted on the others; then all rows are fitted.
// features: (n, channels), labels: (n) int64.
LinearHead fit_linear_head(const torch::Tensor& features, const torch::Tensor& labels, int64_t classes);

double share_of(const torch::Tensor& rows);  // of a boolean tensor: the share of true values

}  // namespace strata
