// One decoding step of streaming HSA on CUDA (strata/hsa_stream.h): a block per sequence and head attends to the cache
// and takes the token in; then a thread per sequence counts it. Masses and lengths belong to all heads, so they change
// last.
#include <cmath>

#include "cuda/hsa_stream_kernels.h"
#include "cuda/simt.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kMaxHeights = 32;

// Whether the next token has room; a full cache stays as it is, and the output becomes NaN.
__device__ bool has_room(const HsaStreamStep& s, int64_t batch) {
  int64_t heights = 1;
  for (int64_t rest = s.lengths[batch] + 1; rest >= s.branching; rest /= s.branching) ++heights;
  return s.lengths[batch] >= 0 && heights <= s.capacity;
}
template <class C>
__device__ C new_weight(const HsaStreamStep& s, int64_t batch) {
  return s.weight == nullptr ? C(1) : static_cast<const C*>(s.weight)[batch];
}

// The masses of the entries that the new token makes: itself, then parents of families that it completes. f(height,
// slot, mass of the entry, mass of the newest child).
template <class C, class F>
__device__ void each_new_entry(const HsaStreamStep& s, int64_t batch, const F& f) {
  const int64_t b = s.branching;
  const C* masses = static_cast<const C*>(s.masses) + batch * s.capacity * b;
  int64_t rest = s.lengths[batch];
  C mass = new_weight<C>(s, batch);
  f(0, rest % b, mass, C(0));
  for (int64_t height = 0; rest % b == b - 1; ++height) {
    rest /= b;
    const C newest = mass;
    for (int64_t n = 0; n < b - 1; ++n) mass += masses[height * b + n];
    f(height + 1, rest % b, mass, newest);
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads) stream_step_kernel(const __grid_constant__ HsaStreamStep s) {
  __shared__ C scores[kMaxHeights * kMaxBranching + 1];
  __shared__ C totals[2];
  const int64_t bh = blockIdx.x, batch = bh / s.heads, head = bh % s.heads, b = s.branching;
  const int d = s.head_size, dv = s.value_size, warp = static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  const C* q = static_cast<const C*>(s.q) + bh * d;
  const C* k = static_cast<const C*>(s.k) + bh * d;
  const C* v = static_cast<const C*>(s.v) + bh * dv;
  C* keys = static_cast<C*>(s.keys) + bh * s.capacity * b * d;
  C* values = static_cast<C*>(s.values) + bh * s.capacity * b * dv;
  C* kappas = static_cast<C*>(s.kappas) + bh * s.capacity * b;
  const C* masses = static_cast<const C*>(s.masses) + batch * s.capacity * b;
  C* out = static_cast<C*>(s.out) + bh * dv;
  const C kappa = s.key_bias == nullptr ? C(0) : static_cast<const C*>(s.key_bias)[bh];
  const C minus_infinity = -static_cast<C>(INFINITY);
  if (!has_room(s, batch)) {
    for (int c = static_cast<int>(threadIdx.x); c < dv; c += kThreads) out[c] = static_cast<C>(NAN);
    return;
  }
  // Entry 0 is the token itself; entry 1 + height b + n of the cache. Those that do not count have a score of -inf.
  int64_t heights = 0;
  for (int64_t rest = s.lengths[batch]; rest > 0; rest /= b) ++heights;
  const int entries = static_cast<int>(1 + heights * b);
  for (int e = warp; e < entries; e += kWarps) {
    const int64_t at = e - 1, height = at / b, n = at % b;
    int64_t ancestor = s.lengths[batch];
    for (int64_t h = 0; h < height; ++h) ancestor /= b;
    const int64_t place = ancestor % b;
    const C mass = e == 0 ? new_weight<C>(s, batch) : n < place ? masses[at] : C(0);
    C score = 0;
    if (mass > 0) {
      const C* row = e == 0 ? k : keys + at * d;
      for (int c = lane; c < d; c += 32) score += q[c] * row[c];
    }
    score = static_cast<C>(s.scale) * warp_sum(score) + (e == 0 ? kappa : kappas[at]) + log(mass);
    if (e > 0 && s.positions != nullptr && height < s.heights)
      score += static_cast<const C*>(s.positions)[((head * s.heights + height) * b + place) * b + n];
    if (lane == 0) scores[e] = mass > 0 ? score : minus_infinity;
  }
  __syncthreads();
  if (warp == 0) {
    C peak = minus_infinity, sum = 0;
    for (int e = lane; e < entries; e += 32) peak = fmax(peak, scores[e]);
    peak = warp_max(peak);
    for (int e = lane; e < entries; e += 32) sum += scores[e] == minus_infinity ? C(0) : exp(scores[e] - peak);
    sum = warp_sum(sum);
    if (lane == 0) totals[0] = peak, totals[1] = sum;
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < dv; c += kThreads) {
    C y = 0;
    for (int e = 0; e < entries; ++e) {
      if (scores[e] == minus_infinity) continue;
      y += exp(scores[e] - totals[0]) / totals[1] * (e == 0 ? v[c] : values[(e - 1) * dv + c]);
    }
    out[c] = y;
  }
  __syncthreads();  // the cache was read

  // A thread keeps to its channels, so that of what is new it reads only what it wrote.
  each_new_entry<C>(s, batch, [&](int64_t height, int64_t slot, C mass, C newest) {
    const int64_t to = height * b + slot;
    auto mean = [&](C* rows, int stride, int c, C own) {
      if (height == 0) return own;
      C sum = 0;
      for (int64_t n = 0; n < b; ++n) {
        const int64_t at = (height - 1) * b + n;
        const C part = n == b - 1 ? newest : masses[at];
        if (part > 0) sum += part / mass * rows[at * stride + c];
      }
      return sum;
    };
    for (int c = static_cast<int>(threadIdx.x); c < d; c += kThreads) keys[to * d + c] = mean(keys, d, c, k[c]);
    for (int c = static_cast<int>(threadIdx.x); c < dv; c += kThreads) values[to * dv + c] = mean(values, dv, c, v[c]);
    if (threadIdx.x == 0) kappas[to] = mean(kappas, 1, 0, kappa);
  });
}

template <class C>
__global__ void stream_count_kernel(const __grid_constant__ HsaStreamStep s) {
  const int64_t batch = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (batch >= s.batch || !has_room(s, batch)) return;
  C* masses = static_cast<C*>(s.masses) + batch * s.capacity * s.branching;
  each_new_entry<C>(s, batch,
                    [&](int64_t height, int64_t slot, C mass, C) { masses[height * s.branching + slot] = mass; });
  ++s.lengths[batch];
}

template <class C>
cudaError_t step(const HsaStreamStep& s, cudaStream_t queue) {
  stream_step_kernel<C><<<blocks_for(s.batch * s.heads, 1), kThreads, 0, queue>>>(s);
  stream_count_kernel<C><<<blocks_for(s.batch, 128), 128, 0, queue>>>(s);
  return cudaGetLastError();
}

}  // namespace

cudaError_t hsa_stream_step_simt(const HsaStreamStep& s, cudaStream_t stream) {
  return s.dtype == DType::kFloat64 ? step<double>(s, stream) : step<float>(s, stream);
}

}  // namespace strata::cuda
