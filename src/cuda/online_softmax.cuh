// The online softmax: a row's running maximum and the sum of its weights relative to it. When the maximum rises, what
// was summed so far is multiplied by `rescale`. Rows that have seen nothing have a maximum of -inf and a sum of zero.
#pragma once

#include <cmath>

#include "cuda/mma.cuh"
#include "cuda/warp.cuh"

namespace strata::cuda {

// exp(x - (-inf)) must not become NaN where nothing was seen yet.
template <class C>
__device__ inline C finite_or_zero(C max) {
  return max == -static_cast<C>(INFINITY) ? C(0) : max;
}

// For SIMT kernels, natural base, in any compute type.
template <class C>
struct OnlineSoftmax {
  C max = -static_cast<C>(INFINITY), sum = 0;

  // Raises the maximum to that of new scores; returns rescale.
  __device__ C raise(C new_max) {
    const C old = max;
    max = fmax(old, new_max);
    return exp(old - finite_or_zero(max));
  }
  __device__ C weight(C score) const { return exp(score - finite_or_zero(max)); }
  // One score per lane: returns its weight.
  __device__ C add_warp(C score, C& rescale) {
    rescale = raise(warp_max(score));
    const C p = weight(score);
    sum = sum * rescale + warp_sum(p);
    return p;
  }
  // One score, the same in all lanes.
  __device__ C add_one(C score, C& rescale) {
    rescale = raise(score);
    const C p = weight(score);
    sum = sum * rescale + p;
    return p;
  }
  __device__ C lse() const { return sum == 0 ? -static_cast<C>(INFINITY) : max + log(sum); }
  __device__ C inverse() const { return sum == 0 ? C(0) : C(1) / sum; }
};

// For one row of an mma accumulator: score(n, e), e < 2, are this lane's scores of product tile n. They become
// 2^(factor score - factor max). The sum is that of this lane alone; quad_sum completes it.
struct OnlineSoftmaxRow {
  float max = -INFINITY, sum = 0;

  template <int kTiles, class Score>
  __device__ float add(float factor, const Score& score) {
    float new_max = max;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) new_max = fmaxf(new_max, fmaxf(score(n, 0), score(n, 1)));
    new_max = quad_max(new_max);
    const float base = new_max == -INFINITY ? 0.0f : new_max * factor;
    const float rescale = fast_exp2(max * factor - base);
    max = new_max;
    float add = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = score(n, e);
        x = fast_exp2(x * factor - base);
        add += x;
      }
    }
    sum = sum * rescale + add;
    return rescale;
  }

  // After the last tile: 1 / sum, zero for rows that saw nothing; NaN stays NaN. Also the log-sum-exp.
  __device__ float finish(float factor, float& lse) const {
    const float total = quad_sum(sum);
    lse = total == 0 ? -INFINITY : max * factor * kLn2 + logf(total);
    return total > 0 ? 1.0f / total : (total == 0 ? 0.0f : total);
  }
};

}  // namespace strata::cuda
