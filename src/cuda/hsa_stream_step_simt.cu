// One decoding step of streaming attention on CUDA (strata/hsa_stream.h): a block per sequence and query head attends
// to the cache; then a block per sequence adds the token to it.
#include <cmath>

#include "cuda/hsa_stream_kernels.h"
#include "cuda/online_softmax.cuh"
#include "cuda/simt.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The cache of one sequence and key head: `ring` slots of every height, a row of `width` = levels * head_size key
// channels each.
template <class C>
struct StepCache {
  const HsaStreamStep& s;
  int64_t ring, width;
  C *keys, *values, *kappas, *masses;
  const C *new_key, *new_value;
  C new_kappa, new_mass;

  __device__ StepCache(const HsaStreamStep& step, int64_t batch, int64_t key_head)
      : s(step), ring(static_cast<int64_t>(s.near) * s.branching), width(static_cast<int64_t>(s.levels) * s.head_size) {
    const int64_t row = batch * s.key_heads + key_head, first = row * s.capacity * ring;
    keys = static_cast<C*>(s.keys) + first * width;
    values = static_cast<C*>(s.values) + first * s.value_size;
    kappas = static_cast<C*>(s.kappas) + first;
    masses = static_cast<C*>(s.masses) + batch * s.capacity * ring;
    new_key = static_cast<const C*>(s.k) + row * width;
    new_value = static_cast<const C*>(s.v) + row * s.value_size;
    new_kappa = s.key_bias == nullptr ? C(0) : static_cast<const C*>(s.key_bias)[row];
    new_mass = s.weight == nullptr ? C(1) : static_cast<const C*>(s.weight)[batch];
  }
  __device__ int64_t slot(int64_t height, int64_t node) const { return height * ring + node % ring; }
};

// Whether the next token has room; a full cache stays as it is, and the output becomes NaN.
__device__ bool has_room(const HsaStreamStep& s, int64_t batch) {
  int64_t heights = 1;
  for (int64_t rest = s.lengths[batch] + 1; rest >= s.branching; rest /= s.branching) ++heights;
  return s.lengths[batch] >= 0 && heights <= s.capacity;
}

// One query head of one sequence, by the warps of a block: every warp has some of the entries.
template <class C>
struct StepQuery {
  const StepCache<C>& cache;
  int64_t head;
  const C* q;  // (levels, head_size)
  OnlineSoftmax<C> softmax;
  C acc[kLaneChannels] = {};

  __device__ StepQuery(const StepCache<C>& c, int64_t batch, int64_t h)
      : cache(c), head(h), q(static_cast<const C*>(c.s.q) + (batch * c.s.heads + h) * c.width) {}

  __device__ void see(const C* key, const C* value, C kappa, C mass, C position) {
    if (!(mass > 0)) return;
    const HsaStreamStep& s = cache.s;
    C sum = 0;
    for (int level = 0; level < s.levels; ++level) {
      const C weight =
          s.level_weights == nullptr ? C(1) : static_cast<const C*>(s.level_weights)[head * s.levels + level];
      C product = 0;
      each_lane_channel(s.head_size,
                        [&](int, int c) { product += q[level * s.head_size + c] * key[level * s.head_size + c]; });
      sum += weight * product;
    }
    C rescale;
    const C p = softmax.add_one(static_cast<C>(s.scale) * warp_sum(sum) + kappa + log(mass) + position, rescale);
    each_lane_channel(s.value_size, [&](int x, int c) { acc[x] = acc[x] * rescale + p * value[c]; });
  }
  __device__ void see_cache(int64_t length) {
    const HsaStreamStep& s = cache.s;
    const int64_t b = s.branching, n = s.near;
    int64_t ancestor = length;
    for (int64_t height = 0; height == 0 || ancestor >= n; ++height, ancestor /= b) {
      const int64_t end = height == 0 ? ancestor : ancestor - n + 1;
      for (int64_t m = max(int64_t{0}, ancestor / b - n + 1) * b + warp_of_thread(); m < end; m += kWarps) {
        const int64_t at = cache.slot(height, m);
        const int64_t table = (((head * s.heights + height) * n + ancestor / b - m / b) * b + ancestor % b) * b + m % b;
        const bool positioned = s.positions != nullptr && height < s.heights;
        see(cache.keys + at * cache.width, cache.values + at * s.value_size, cache.kappas[at], cache.masses[at],
            positioned ? static_cast<const C*>(s.positions)[table] : C(0));
      }
    }
  }
};

template <class C>
__global__ void __launch_bounds__(kThreads) stream_step_kernel(const __grid_constant__ HsaStreamStep s) {
  __shared__ C maxima[kWarps], sums[kWarps], outs[kWarps][kMaxHeadSize];
  const int64_t batch = blockIdx.x / s.heads, head = blockIdx.x % s.heads;
  C* const out = static_cast<C*>(s.out) + static_cast<int64_t>(blockIdx.x) * s.value_size;
  if (!has_room(s, batch)) {
    for (int c = static_cast<int>(threadIdx.x); c < s.value_size; c += kThreads) out[c] = static_cast<C>(NAN);
    return;
  }
  const StepCache<C> cache(s, batch, head / (s.heads / s.key_heads));
  StepQuery<C> query(cache, batch, head);
  const int warp = warp_of_thread();
  if (warp == 0) query.see(cache.new_key, cache.new_value, cache.new_kappa, cache.new_mass, C(0));
  query.see_cache(s.lengths[batch]);
  each_lane_channel(s.value_size, [&](int x, int c) { outs[warp][c] = query.acc[x]; });
  if (lane_of_thread() == 0) maxima[warp] = query.softmax.max, sums[warp] = query.softmax.sum;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < s.value_size; c += kThreads) {
    C peak = maxima[0], sum = 0, y = 0;
    for (int w = 1; w < kWarps; ++w) peak = fmax(peak, maxima[w]);
    for (int w = 0; w < kWarps; ++w) {
      const C factor = exp(maxima[w] - finite_or_zero(peak));
      sum += factor * sums[w];
      y += factor * outs[w][c];
    }
    out[c] = sum == 0 ? C(0) : y / sum;
  }
}

// The token's own entry, then those of the families that it completes. The masses belong to all key heads; every thread
// sums those it needs, in the same order, and they are written last.
template <class C>
__global__ void __launch_bounds__(kThreads) stream_append_kernel(const __grid_constant__ HsaStreamStep s) {
  const int64_t batch = blockIdx.x, b = s.branching;
  if (!has_room(s, batch)) return;
  const StepCache<C> first_head(s, batch, 0);
  C* const masses = first_head.masses;
  int64_t node = s.lengths[batch];
  for (int64_t height = 0;; ++height, node /= b) {
    const int64_t to = first_head.slot(height, node), family = height == 0 ? 0 : first_head.slot(height - 1, node * b);
    C mass = height == 0 ? first_head.new_mass : C(0);
    for (int64_t c = 0; height > 0 && c < b; ++c) mass += masses[family + c];
    const int64_t channels = first_head.width + s.value_size + 1;
    for (int64_t item = threadIdx.x; item < s.key_heads * channels; item += kThreads) {
      const StepCache<C> cache(s, batch, item / channels);
      const int64_t c = item % channels;
      auto place = [&](int64_t slot) -> C& {
        return c < cache.width    ? cache.keys[slot * cache.width + c]
               : c < channels - 1 ? cache.values[slot * s.value_size + c - cache.width]
                                  : cache.kappas[slot];
      };
      C sum = c < cache.width    ? cache.new_key[c]
              : c < channels - 1 ? cache.new_value[c - cache.width]
                                 : cache.new_kappa;
      if (height > 0) {
        sum = 0;
        for (int64_t at = family; at < family + b; ++at) {
          if (masses[at] > 0) sum += masses[at] / mass * place(at);
        }
      }
      place(to) = sum;
    }
    __syncthreads();  // the next height reads what this one wrote
    if (threadIdx.x == 0) masses[to] = mass;
    __syncthreads();
    if (node % b != b - 1) break;
  }
  if (threadIdx.x == 0) ++s.lengths[batch];
}

template <class C>
cudaError_t step(const HsaStreamStep& s, cudaStream_t queue) {
  stream_step_kernel<C><<<blocks_for(s.batch * s.heads, 1), kThreads, 0, queue>>>(s);
  stream_append_kernel<C><<<blocks_for(s.batch, 1), kThreads, 0, queue>>>(s);
  return cudaGetLastError();
}

}  // namespace

cudaError_t hsa_stream_step_simt(const HsaStreamStep& s, cudaStream_t stream) {
  return s.dtype == DType::kFloat64 ? step<double>(s, stream) : step<float>(s, stream);
}

}  // namespace strata::cuda
