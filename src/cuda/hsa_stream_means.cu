// The means of the inner nodes of streaming attention, height by height: a warp per node.
#include "cuda/hsa_stream.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

// A node of a height above the first, or above the leaves: lane x has the shares of children x and x + 32.
template <class S>
struct MeanOfNode {
  using C = typename ComputeOf<S>::Type;
  const StreamKeys<S>& keys;
  int height, first, size;
  C total, share[2];
  static_assert(kMaxBranching <= 64);

  __device__ MeanOfNode(const StreamKeys<S>& k, int h, int n)
      : keys(k), height(h), first(n * k.a.p.branching), size(k.children(h, n)) {
    C mass[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int child = lane_of_thread() + 32 * x;
      mass[x] = child < size ? keys.mass(height - 1, first + child) : C(0);
    }
    total = warp_sum(mass[0] + mass[1]);
    for (int x = 0; x < 2; ++x) share[x] = mass[x] > 0 ? mass[x] / total : C(0);
  }
  __device__ C share_of(int child) const { return __shfl_sync(~0u, child < 32 ? share[0] : share[1], child % 32); }

  // f(channel, mean) for all channels: child c has row (first + c) >> level of `rows`, or, if those are means, row c.
  // kPairs: rows are aligned and their channels side by side, so that a lane takes two at a time.
  template <bool kPairs, class V, class F>
  __device__ void each(const V* rows, int64_t stride, int64_t channel_stride, int level, int channels,
                       const F& f) const {
    constexpr int kWide = kPairs ? 2 : 1;
    const int begin = height == 1 ? first : 0;
    for (int c0 = 0; c0 < channels; c0 += 32 * kWide) {
      const int c = c0 + lane_of_thread() * kWide;
      const V* const at = rows + (c < channels ? c : 0) * channel_stride;
      C sum[kWide] = {};
#pragma unroll 8
      for (int child = 0; child < size; ++child) {
        const C w = share_of(child);
        if (!(w > 0)) continue;  // the others may hold anything
        const V* const row = at + static_cast<int64_t>((begin + child) >> level) * stride;
        if constexpr (kPairs) {
          struct alignas(2 * sizeof(V)) Pair {
            V low, high;
          };
          const Pair x = *reinterpret_cast<const Pair*>(row);
          sum[0] += w * static_cast<C>(x.low), sum[1] += w * static_cast<C>(x.high);
        } else {
          sum[0] += w * static_cast<C>(*row);
        }
      }
      for (int x = 0; x < kWide && c < channels; ++x) f(c + x, sum[x]);
    }
  }
};

template <class S, bool kPairs>
__global__ void __launch_bounds__(kThreads)
    stream_means_kernel(const __grid_constant__ StreamArgs<S> a, int height, int count, int items) {
  using C = typename ComputeOf<S>::Type;
  const int item = static_cast<int>(blockIdx.x) * kWarps + warp_of_thread();
  if (item >= items) return;
  const StreamKeys<S> keys(a, item / count);
  const int n = item % count, d = a.p.head_size, values = a.p.value_size;
  const MeanOfNode<S> mean(keys, height, n);
  const int64_t to = keys.node(height, n), children = height == 1 ? 0 : keys.node(height - 1, mean.first);
  auto store = [&](C* means, S* rounded_means, int64_t row, int width) {
    return [=](int c, C x) {
      means[row * width + c] = x;
      if constexpr (kPairs) rounded_means[row * width + c] = static_cast<S>(x);
    };
  };
  for (int level = 0; level < a.p.levels; ++level) {
    const auto f = store(a.k, a.rounded_k, to * a.p.levels + level, d);
    if (height == 1) {
      const Rows<const S> rows = rows_of<const S>(a.p.k[level], keys.batch, keys.key_head);
      mean.template each<kPairs>(rows.data, rows.stride, rows.channel_stride, level, d, f);
    } else {
      mean.template each<kPairs>(a.k + keys.key_row(children, level), int64_t{a.p.levels} * d, 1, 0, d, f);
    }
  }
  const auto f = store(a.v, a.rounded_v, to, values);
  if (height == 1) {
    const Rows<const S> rows = rows_of<const S>(a.p.v, keys.batch, keys.key_head);
    mean.template each<kPairs>(rows.data, rows.stride, rows.channel_stride, 0, values, f);
  } else {
    mean.template each<kPairs>(a.v + children * values, values, 1, 0, values, f);
  }
  C kappa = 0;
  for (int x = 0; x < 2 && a.p.key_bias.data != nullptr; ++x) {
    if (mean.share[x] > 0) kappa += mean.share[x] * keys.kappa(height - 1, mean.first + lane_of_thread() + 32 * x);
  }
  kappa = warp_sum(kappa);
  if (lane_of_thread() != 0) return;
  a.kappa[to] = kappa;
  a.mass[to] = mean.total;
  a.term[to] = mean.total > 0 ? log(mean.total) + kappa : -static_cast<C>(INFINITY);
}

}  // namespace

template <class S>
cudaError_t hsa_stream_means(const StreamArgs<S>& a, bool rounded, cudaStream_t stream) {
  for (int height = 1; height < a.heights.count; ++height) {
    const int nodes = a.heights.nodes[height], items = static_cast<int>(a.p.batch * a.p.key_heads) * nodes;
    // Rows that tensor cores take are aligned.
    const auto kernel =
        sizeof(S) == 2 && rounded ? stream_means_kernel<S, sizeof(S) == 2> : stream_means_kernel<S, false>;
    kernel<<<blocks_for(items, kWarps), kThreads, 0, stream>>>(a, height, nodes, items);
  }
  return cudaGetLastError();
}
template cudaError_t hsa_stream_means(const StreamArgs<float>&, bool, cudaStream_t);
template cudaError_t hsa_stream_means(const StreamArgs<double>&, bool, cudaStream_t);
template cudaError_t hsa_stream_means(const StreamArgs<__nv_bfloat16>&, bool, cudaStream_t);
template cudaError_t hsa_stream_means(const StreamArgs<__half>&, bool, cudaStream_t);

}  // namespace strata::cuda
