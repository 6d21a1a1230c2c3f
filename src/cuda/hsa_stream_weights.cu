// The gradient of streaming HSA's weights: height by height, from the top down, a warp per node. The mass of a node
// counts in its own score, as log|B|, and in |A| and the means of its parent A.
#include "cuda/hsa_stream.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_weight_kernel(const __grid_constant__ StreamArgs<S> a, int height, int count) {
  using C = typename ComputeOf<S>::Type;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= a.p.batch * a.p.heads * count) return;
  const StreamHead<S> head(a, item / count);
  const int n = static_cast<int>(item % count), lane = static_cast<int>(threadIdx.x) % 32;
  const int parent = n / a.p.branching, keys = a.p.head_size, values = a.p.value_size;
  const C mass = head.mass(height, n);
  C gradient = 0;
  if (mass > 0) {
    C score = height > 0 ? a.dkappa[head.node(height, n)] : a.leaf_dkappa[head.token(n)];
    if (height + 1 < a.heights.count && parent < head.count(height + 1)) {
      const int64_t above = head.node(height + 1, parent);
      C sum = 0;
      for (int c = lane; c < keys; c += 32)
        sum += a.dk[above * keys + c] * (head.k(height, n, c) - a.k[above * keys + c]);
      for (int c = lane; c < values; c += 32)
        sum += a.dv[above * values + c] * (head.v(height, n, c) - a.v[above * values + c]);
      sum = warp_sum(sum) + a.dkappa[above] * (head.kappa(height, n) - a.kappa[above]);
      gradient = a.dmass[above] + sum / a.mass[above];
      score -= mass / a.mass[above] * a.dkappa[above];  // without the share that came from the parent
    }
    gradient += score / mass;
  }
  if (lane != 0) return;
  if (height > 0) {
    a.dmass[head.node(height, n)] = gradient;
  } else {
    rows_of<C>(a.g.dweights, head.batch, head.head).at(n, 0) = gradient;
  }
}

}  // namespace

template <class S>
cudaError_t hsa_stream_weight_gradient(const StreamArgs<S>& a, cudaStream_t stream) {
  if (a.dmass == nullptr) return cudaSuccess;
  for (int height = a.heights.count - 1; height >= 0; --height) {
    const int nodes = static_cast<int>(a.p.tokens / a.heights.size[height]);
    stream_weight_kernel<S>
        <<<blocks_for(a.p.batch * a.p.heads * nodes, kWarps), kThreads, 0, stream>>>(a, height, nodes);
  }
  return cudaGetLastError();
}
template cudaError_t hsa_stream_weight_gradient(const StreamArgs<float>&, cudaStream_t);
template cudaError_t hsa_stream_weight_gradient(const StreamArgs<double>&, cudaStream_t);
template cudaError_t hsa_stream_weight_gradient(const StreamArgs<__nv_bfloat16>&, cudaStream_t);
template cudaError_t hsa_stream_weight_gradient(const StreamArgs<__half>&, cudaStream_t);

}  // namespace strata::cuda
