// The means of the inner nodes of streaming attention, height by height: a block per node.
#include "cuda/hsa_stream.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128;

template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_means_kernel(const __grid_constant__ StreamArgs<S> a, int height, int count, bool rounded) {
  using C = typename ComputeOf<S>::Type;
  const int64_t stream = blockIdx.x / count;
  const StreamKeys<S> keys(a, stream / a.p.key_heads, stream % a.p.key_heads);
  const int n = static_cast<int>(blockIdx.x % count), first = n * a.p.branching, size = keys.children(height, n);
  const int key_channels = a.p.levels * a.p.head_size, values = a.p.value_size;
  const int64_t to = keys.node(height, n);
  C total = 0;
#pragma unroll 4
  for (int c = 0; c < size; ++c) total += keys.mass(height - 1, first + c);
  const C inverse = total > 0 ? C(1) / total : C(0);
  auto mean = [&](const auto& value) {
    C sum = 0;
#pragma unroll 8
    for (int child = first; child < first + size; ++child) {
      const C w = keys.mass(height - 1, child);
      if (w > 0) sum += w * inverse * value(child);  // the others may hold anything
    }
    return sum;
  };
  for (int x = static_cast<int>(threadIdx.x); x < key_channels; x += kThreads) {
    const int level = x / a.p.head_size, channel = x % a.p.head_size;
    const C k = mean([&](int child) { return keys.k(height - 1, child, level, channel); });
    a.k[to * key_channels + x] = k;
    if (rounded) a.rounded_k[to * key_channels + x] = static_cast<S>(k);
  }
  // The other threads first, so that all have their share of small heads.
  for (int x = kThreads - 1 - static_cast<int>(threadIdx.x); x < values; x += kThreads) {
    const C v = mean([&](int child) { return keys.v(height - 1, child, x); });
    a.v[to * values + x] = v;
    if (rounded) a.rounded_v[to * values + x] = static_cast<S>(v);
  }
  if (threadIdx.x != 0) return;
  const C kappa = a.p.key_bias.data == nullptr ? C(0) : mean([&](int child) { return keys.kappa(height - 1, child); });
  a.kappa[to] = kappa;
  a.mass[to] = total;
  a.term[to] = total > 0 ? log(total) + kappa : -static_cast<C>(INFINITY);
}

}  // namespace

template <class S>
cudaError_t hsa_stream_means(const StreamArgs<S>& a, bool rounded, cudaStream_t stream) {
  for (int height = 1; height < a.heights.count; ++height) {
    const int nodes = a.heights.nodes[height];
    stream_means_kernel<S>
        <<<blocks_for(a.p.batch * a.p.key_heads * nodes, 1), kThreads, 0, stream>>>(a, height, nodes, rounded);
  }
  return cudaGetLastError();
}
template cudaError_t hsa_stream_means(const StreamArgs<float>&, bool, cudaStream_t);
template cudaError_t hsa_stream_means(const StreamArgs<double>&, bool, cudaStream_t);
template cudaError_t hsa_stream_means(const StreamArgs<__nv_bfloat16>&, bool, cudaStream_t);
template cudaError_t hsa_stream_means(const StreamArgs<__half>&, bool, cudaStream_t);

}  // namespace strata::cuda
