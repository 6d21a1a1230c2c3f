// The gradients of two kinds of weights. Those of the leaves: height by height, from the top down, a warp per node. The
// mass of a node counts in its own score, as log|B|, and in |A| and the means of its parent A. Those of the levels: the
// sums of the parts that the queries left.
#include "cuda/hsa_stream.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_weight_kernel(const __grid_constant__ StreamArgs<S> a, int height, int count) {
  using C = typename ComputeOf<S>::Type;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_thread();
  if (item >= a.p.batch * a.p.key_heads * count) return;
  const StreamKeys<S> keys(a, static_cast<int>(item / count));
  const int n = static_cast<int>(item % count), lane = lane_of_thread();
  if (n >= keys.count(height)) return;
  const int values = a.p.value_size;
  const C mass = keys.mass(height, n);
  const auto parent = keys.parent(height, n);
  C gradient = 0;
  if (mass > 0) {
    C score = height > 0 ? a.dkappa[keys.node(height, n)] : a.leaf_dkappa[keys.leaf(n)];
    if (parent.share > 0) {
      C sum = 0;
      for (int level = 0; level < a.p.levels; ++level) {
        const int64_t above = keys.key_row(parent.node, level);
        for (int c = lane; c < a.p.head_size; c += 32)
          sum += a.dk[above + c] * (keys.k(height, n, level, c) - a.k[above + c]);
      }
      for (int c = lane; c < values; c += 32)
        sum += a.dv[parent.node * values + c] * (keys.v(height, n, c) - a.v[parent.node * values + c]);
      sum = warp_sum(sum) + a.dkappa[parent.node] * (keys.kappa(height, n) - a.kappa[parent.node]);
      gradient = a.dmass[parent.node] + sum / a.mass[parent.node];
      score -= parent.share * a.dkappa[parent.node];  // without the share that came from the parent
    }
    gradient += score / mass;
  }
  if (lane != 0) return;
  if (height > 0) {
    a.dmass[keys.node(height, n)] = gradient;
  } else {
    rows_of<C>(a.g.dweights, keys.batch, keys.key_head).at(n, 0) = gradient;
  }
}

// A block per head.
template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_level_kernel(const __grid_constant__ StreamArgs<S> a, int level, int64_t parts) {
  using C = typename ComputeOf<S>::Type;
  __shared__ C sums[kWarps];
  const int64_t head = blockIdx.x;
  C sum = 0;
  for (int64_t batch = 0; batch < a.p.batch; ++batch) {
    const C* from = a.level_parts + ((batch * a.p.heads + head) * a.p.levels + level) * a.p.tokens;
    for (int64_t at = threadIdx.x; at < parts; at += kThreads) sum += from[at];
  }
  sum = warp_sum(sum);
  if (lane_of_thread() == 0) sums[warp_of_thread()] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  C total = 0;
  for (const C part : sums) total += part;
  static_cast<C*>(a.g.dlevel_weights)[head * a.p.levels + level] = total;
}

}  // namespace

template <class S>
cudaError_t hsa_stream_weight_gradient(const StreamArgs<S>& a, cudaStream_t stream) {
  if (a.dmass == nullptr) return cudaSuccess;
  for (int height = a.heights.count - 1; height >= 0; --height) {
    const int nodes = a.heights.nodes[height];
    stream_weight_kernel<S>
        <<<blocks_for(a.p.batch * a.p.key_heads * nodes, kWarps), kThreads, 0, stream>>>(a, height, nodes);
  }
  return cudaGetLastError();
}

template <class S>
cudaError_t hsa_stream_level_gradient(const StreamArgs<S>& a, int level, int64_t parts, cudaStream_t stream) {
  if (a.level_parts == nullptr) return cudaSuccess;
  stream_level_kernel<S><<<static_cast<unsigned>(a.p.heads), kThreads, 0, stream>>>(a, level, parts);
  return cudaGetLastError();
}

#define STRATA_STREAM_WEIGHTS(S)                                                       \
  template cudaError_t hsa_stream_weight_gradient(const StreamArgs<S>&, cudaStream_t); \
  template cudaError_t hsa_stream_level_gradient(const StreamArgs<S>&, int, int64_t, cudaStream_t);
STRATA_STREAM_WEIGHTS(float)
STRATA_STREAM_WEIGHTS(double)
STRATA_STREAM_WEIGHTS(__nv_bfloat16)
STRATA_STREAM_WEIGHTS(__half)
#undef STRATA_STREAM_WEIGHTS

}  // namespace strata::cuda
