// The means of the inner nodes of streaming HSA, height by height: a block per node.
#include "cuda/hsa_stream.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128;

template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_means_kernel(const __grid_constant__ StreamArgs<S> a, int height, int count, bool rounded) {
  using C = typename ComputeOf<S>::Type;
  const StreamHead<S> head(a, blockIdx.x / count);
  const int n = static_cast<int>(blockIdx.x) % count, b = a.p.branching, keys = a.p.head_size, values = a.p.value_size;
  const int64_t to = head.node(height, n);
  C total = 0;
#pragma unroll 4
  for (int c = 0; c < b; ++c) total += head.mass(height - 1, n * b + c);
  const C inverse = total > 0 ? C(1) / total : C(0);
  auto mean = [&](const auto& value) {
    C sum = 0;
#pragma unroll 8
    for (int c = 0; c < b; ++c) {
      const int child = n * b + c;
      const C w = head.mass(height - 1, child);
      if (w > 0) sum += w * inverse * value(child);  // the others may hold anything
    }
    return sum;
  };
  for (int x = static_cast<int>(threadIdx.x); x < keys; x += kThreads) {
    const C k = mean([&](int child) { return head.k(height - 1, child, x); });
    a.k[to * keys + x] = k;
    if (rounded) a.rounded_k[to * keys + x] = static_cast<S>(k);
  }
  // The other threads first, so that all have their share of small heads.
  for (int x = kThreads - 1 - static_cast<int>(threadIdx.x); x < values; x += kThreads) {
    const C v = mean([&](int child) { return head.v(height - 1, child, x); });
    a.v[to * values + x] = v;
    if (rounded) a.rounded_v[to * values + x] = static_cast<S>(v);
  }
  if (threadIdx.x != 0) return;
  a.kappa[to] = a.p.key_bias.data == nullptr ? C(0) : mean([&](int child) { return head.kappa(height - 1, child); });
  a.mass[to] = total;
}

}  // namespace

template <class S>
cudaError_t hsa_stream_means(const StreamArgs<S>& a, bool rounded, cudaStream_t stream) {
  for (int height = 1; height < a.heights.count; ++height) {
    const int nodes = static_cast<int>(a.p.tokens / a.heights.size[height]);
    stream_means_kernel<S>
        <<<blocks_for(a.p.batch * a.p.heads * nodes, 1), kThreads, 0, stream>>>(a, height, nodes, rounded);
  }
  return cudaGetLastError();
}
template cudaError_t hsa_stream_means(const StreamArgs<float>&, bool, cudaStream_t);
template cudaError_t hsa_stream_means(const StreamArgs<double>&, bool, cudaStream_t);
template cudaError_t hsa_stream_means(const StreamArgs<__nv_bfloat16>&, bool, cudaStream_t);
template cudaError_t hsa_stream_means(const StreamArgs<__half>&, bool, cudaStream_t);

}  // namespace strata::cuda
