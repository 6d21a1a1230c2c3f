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
  __device__ C share_of(int child) const {
    const C low = __shfl_sync(~0u, share[0], child % 32);
    return size <= 32 ? low : child < 32 ? low : __shfl_sync(~0u, share[1], child % 32);
  }

  // f(channel, mean) for all channels: child c has row (first + c) >> level of `rows`, or, if those are means, row c.
  template <class V, class F>
  __device__ void each(const V* rows, int64_t stride, int64_t channel_stride, int level, int channels,
                       const F& f) const {
    const int begin = height == 1 ? first : 0;
    for (int c0 = 0; c0 < channels; c0 += 32) {
      const int c = c0 + lane_of_thread();
      const V* const at = rows + (c < channels ? c : 0) * channel_stride;
      C sum = 0;
#pragma unroll 8
      for (int child = 0; child < size; ++child) {
        const C w = share_of(child);
        if (w > 0) sum += w * static_cast<C>(at[static_cast<int64_t>((begin + child) >> level) * stride]);
      }  // the others may hold anything
      if (c < channels) f(c, sum);
    }
  }
  // The same for aligned rows whose channels are side by side, at most 128: f(chunk, means of its eight channels).
  template <class V, class F>
  __device__ void each_chunk(const V* rows, int64_t stride, int level, int channels, const F& f) const {
    int lanes = 1;  // of a row
    while (lanes * 8 < channels) lanes *= 2;
    const int begin = height == 1 ? first : 0, chunk = lane_of_thread() % lanes;
    C sum[8] = {};
#pragma unroll 4
    for (int child0 = 0; child0 < size; child0 += 32 / lanes) {
      const int child = child0 + lane_of_thread() / lanes;
      const C w = share_of(min(child, 63));
      if (child >= size || !(w > 0) || chunk * 8 >= channels) continue;
      struct alignas(16) Eight {
        V x[8];
      };
      const Eight eight =
          *reinterpret_cast<const Eight*>(rows + static_cast<int64_t>((begin + child) >> level) * stride + chunk * 8);
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[c] += w * static_cast<C>(eight.x[c]);
    }
    for (int offset = lanes; offset < 32; offset *= 2) {
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[c] += __shfl_xor_sync(~0u, sum[c], offset);
    }
    if (lane_of_thread() < lanes && chunk * 8 < channels) f(chunk, sum);
  }
};

// kAligned: rows that tensor cores take. Their means are stored rounded as well.
template <class S, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    stream_means_kernel(const __grid_constant__ StreamArgs<S> a, int height, int count, int items) {
  using C = typename ComputeOf<S>::Type;
  const int item = static_cast<int>(blockIdx.x) * kWarps + warp_of_thread();
  if (item >= items) return;
  const StreamKeys<S> keys(a, item / count);
  if (item % count >= keys.count(height)) return;
  const int n = item % count, d = a.p.head_size, values = a.p.value_size;
  const MeanOfNode<S> mean(keys, height, n);
  const int64_t to = keys.node(height, n), children = height == 1 ? 0 : keys.node(height - 1, mean.first);
  auto store = [&](const auto* rows, int64_t stride, int64_t channel_stride, int level, int channels, C* means,
                   S* rounded) {
    if constexpr (kAligned) {
      mean.each_chunk(rows, stride, level, channels, [&](int chunk, const C(&x)[8]) {
        float4* const whole = reinterpret_cast<float4*>(means + 8 * chunk);
        whole[0] = make_float4(x[0], x[1], x[2], x[3]), whole[1] = make_float4(x[4], x[5], x[6], x[7]);
        reinterpret_cast<uint4*>(rounded)[chunk] =
            make_uint4(pack(x[0], x[1], S()), pack(x[2], x[3], S()), pack(x[4], x[5], S()), pack(x[6], x[7], S()));
      });
    } else {
      mean.each(rows, stride, channel_stride, level, channels, [&](int c, C x) { means[c] = x; });
    }
  };
  for (int level = 0; level < a.p.levels; ++level) {
    const int64_t row = (to * a.p.levels + level) * d;
    if (height == 1) {
      const Rows<const S> rows = rows_of<const S>(a.p.k[level], keys.batch, keys.key_head);
      store(rows.data, rows.stride, rows.channel_stride, level, d, a.k + row, a.rounded_k + row);
    } else {
      store(a.k + keys.key_row(children, level), int64_t{a.p.levels} * d, 1, 0, d, a.k + row, a.rounded_k + row);
    }
  }
  const int64_t row = to * values;
  if (height == 1) {
    const Rows<const S> rows = rows_of<const S>(a.p.v, keys.batch, keys.key_head);
    store(rows.data, rows.stride, rows.channel_stride, 0, values, a.v + row, a.rounded_v + row);
  } else {
    store(a.v + children * values, values, 1, 0, values, a.v + row, a.rounded_v + row);
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
