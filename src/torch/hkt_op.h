// HKT attention as torch operators. In Python they are torch.ops.strata.hkt_attention and so on.
#pragma once

#include <torch/torch.h>

#include <tuple>
#include <vector>

#include "strata/export.h"

namespace strata {

struct HktOptions {
  c10::optional<at::Tensor> lengths = c10::nullopt;  // (B) int64: real tokens of each sequence
  c10::optional<at::Tensor> bias = c10::nullopt;     // broadcasts to (B, H, T, T); added to the scaled scores
  bool causal = false;
  c10::optional<double> scale = c10::nullopt;  // 1 / sqrt(head size) unless given
};

// q[l]: (B, H, ceil(T / 2^l), d), k[l]: (B, Hk, ceil(T / 2^l), d), v: (B, Hk, T, dv), weights: (H, levels).
// Returns out (B, H, T, dv) and lse (B, H, T), the natural log of each row's sum; both are differentiable, once.
STRATA_API std::tuple<at::Tensor, at::Tensor> hkt_attention(at::TensorList q, at::TensorList k, const at::Tensor& v,
                                                            const at::Tensor& weights, const HktOptions& options = {});

// One new token per sequence: q[l] is (B, H, 1, d), the caches k[l] and v may be longer than lengths says. Returns
// (B, H, 1, dv). Not differentiable.
STRATA_API at::Tensor hkt_decode(at::TensorList q, at::TensorList k, const at::Tensor& v, const at::Tensor& weights,
                                 const at::Tensor& lengths, c10::optional<double> scale = c10::nullopt);

// y_m = sum_r W_r x_{stride m - r}. x: (B, T, C); weight: (taps, C) depthwise or (taps, C, C) dense. Differentiable.
STRATA_API at::Tensor causal_filter(const at::Tensor& x, const at::Tensor& weight, int64_t stride);

}  // namespace strata
