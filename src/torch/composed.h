// HKT attention composed from torch operators, as a PyTorch user writes it today: one T x T matrix after the other. The
// tests compare with it, and the benchmarks measure it as the peer.
#pragma once

#include <limits>

#include "torch/hkt_op.h"

namespace strata {

inline std::tuple<at::Tensor, at::Tensor> composed_hkt(at::TensorList q, at::TensorList k, const at::Tensor& v,
                                                       const at::Tensor& weights, const HktOptions& options = {}) {
  const int64_t T = v.size(2), H = q[0].size(1), group = H / v.size(1);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q[0].size(3))));
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  auto for_query_heads = [&](const at::Tensor& t) { return group == 1 ? t : t.repeat_interleave(group, 1); };

  at::Tensor scores;
  for (size_t l = 0; l < q.size(); ++l) {
    at::Tensor level = at::matmul(q[l], for_query_heads(k[l]).transpose(-1, -2));
    if (l > 0) {
      const int64_t block = int64_t{1} << l;
      level = level.repeat_interleave(block, 2).repeat_interleave(block, 3).narrow(2, 0, T).narrow(3, 0, T);
    }
    const at::Tensor term =
        level * (scale * weights.select(1, static_cast<int64_t>(l)).to(v.scalar_type())).view({H, 1, 1});
    scores = scores.defined() ? scores + term : term;
  }
  if (options.bias.has_value()) scores = scores + *options.bias;
  if (options.causal) {
    scores = scores.masked_fill(at::ones({T, T}, v.options().dtype(at::kBool)).triu(1), minus_infinity);
  }
  if (!options.lengths.has_value())
    return {at::matmul(at::softmax(scores, -1), for_query_heads(v)), at::logsumexp(scores, -1)};

  const at::Tensor padding = (at::arange(T, options.lengths->options()) >= options.lengths->unsqueeze(1));
  const at::Tensor empty = padding.view({-1, 1, T, 1});
  scores = scores.masked_fill(padding.view({-1, 1, 1, T}), minus_infinity).masked_fill(empty, 0.0);
  return {at::matmul(at::softmax(scores, -1), for_query_heads(v)).masked_fill(empty, 0.0),
          at::logsumexp(scores, -1).masked_fill(empty.squeeze(-1), minus_infinity)};
}

}  // namespace strata
