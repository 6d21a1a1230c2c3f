// HKT attention composed from torch operators, as a PyTorch user would write it: with T x T matrices. The tests compare
// with it, and the benchmarks measure it as the baseline.
#pragma once

#include <cmath>
#include <limits>

#include "torch/hkt_op.h"

namespace strata {

// S (B, H, T, T), -inf for masked pairs.
inline at::Tensor composed_scores(at::TensorList q, at::TensorList k, const at::Tensor& weights,
                                  const HktOptions& options = {}) {
  const int64_t T = q[0].size(2), H = q[0].size(1), group = H / k[0].size(1);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q[0].size(3))));
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  at::Tensor scores;
  for (size_t l = 0; l < q.size(); ++l) {
    const at::Tensor key = group == 1 ? k[l] : k[l].repeat_interleave(group, 1);
    at::Tensor level = at::matmul(q[l], key.transpose(-1, -2));
    if (l > 0) {
      const int64_t block = int64_t{1} << l;
      level = level.repeat_interleave(block, 2).repeat_interleave(block, 3).narrow(2, 0, T).narrow(3, 0, T);
    }
    const at::Tensor weight = scale * weights.select(1, static_cast<int64_t>(l)).to(q[0].scalar_type());
    const at::Tensor term = level * weight.view({H, 1, 1});
    scores = scores.defined() ? scores + term : term;
  }
  if (options.bias.has_value()) scores = scores + *options.bias;
  if (options.causal) {
    scores = scores.masked_fill(at::ones({T, T}, scores.options().dtype(at::kBool)).triu(1), minus_infinity);
  }
  if (options.lengths.has_value()) {
    const at::Tensor padding = at::arange(T, options.lengths->options()) >= options.lengths->unsqueeze(1);
    scores = scores.masked_fill(padding.view({-1, 1, 1, T}), minus_infinity)
                 .masked_fill(padding.view({-1, 1, T, 1}), minus_infinity);
  }
  return scores;
}

inline at::Tensor composed_hkt(at::TensorList q, at::TensorList k, const at::Tensor& v, const at::Tensor& weights,
                               const HktOptions& options = {}) {
  const at::Tensor scores = composed_scores(q, k, weights, options);
  const int64_t group = q[0].size(1) / v.size(1);
  const at::Tensor value = group == 1 ? v : v.repeat_interleave(group, 1);
  if (!options.lengths.has_value()) return at::matmul(at::softmax(scores, -1), value);
  // Padding rows see no key; softmax would make them NaN.
  const at::Tensor empty = (scores == -std::numeric_limits<double>::infinity()).all(-1, /*keepdim=*/true);
  return at::matmul(at::softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0), value);
}

}  // namespace strata
