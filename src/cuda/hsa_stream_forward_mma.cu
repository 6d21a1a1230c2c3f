// Streaming attention forward with mma.sync (hsa_stream_query_mma.cuh).
#include "cuda/hsa_stream_query_mma.cuh"

namespace strata::cuda {
namespace {

template <class T, int D, int kLevels, bool kDrop>
__global__ void __launch_bounds__(QueryThreads<kLevels>::kThreads, query_blocks(D, kLevels, false))
    stream_mma_forward_kernel(const __grid_constant__ StreamArgs<T> a, int tiles, QueryShape shape) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const StreamHead<T> head(a, static_cast<int>(blockIdx.x) / tiles);
  using Queries = QueryBlock<T, D, kLevels>;
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  if (tile * Queries::Threads::kRows >= head.tokens) return;  // of a packed sequence that is shorter
  const Queries queries(head, shape, tile, memory);
  float acc[D / 8][4] = {};
  TileSoftmax<true> softmax;
  queries.each_tile([&](float(&s)[2][4], const typename Queries::Range& range) {
    float rescale[2];
    softmax.add(s, rescale);
    if (__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][i] *= rescale[i / 2];
      }
    }
    if constexpr (kDrop)
      each_of_tile([&](int half, int n, int i, int y) {
        s[n][i] *= head.kept(queries.mine + tile_query(half), range.piece.height, range.begin() + y);
      });
    uint32_t left[4];
    tile_operand<T>(left, s);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) by_rows<T, D>(acc[n], acc[n + 1], left, range.value_tile(), n);
  });
  const Rows<T> out = rows_of<T>(a.o.out, head.batch, head.head);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = queries.mine + tile_query(half);
    T* const to = out.data + i * out.stride;
    const float total = quad_sum(softmax.sum[half]), inverse = total == 0 ? 0.0f : 1.0f / total;
    if (i > queries.last) continue;
    if (lane_of_thread() % 4 == 0)
      static_cast<float*>(a.o.lse)[head.token(i)] =
          total == 0 ? -INFINITY : (softmax.max[half] + __log2f(total)) * kLn2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int channel = 8 * n + 2 * (lane_of_thread() % 4);
      if (channel < a.p.value_size)
        reinterpret_cast<uint32_t&>(to[channel]) =
            pack(acc[n][2 * half] * inverse, acc[n][2 * half + 1] * inverse, T());
    }
  }
}

}  // namespace

cudaError_t hsa_stream_forward_mma(const StreamCall& call) {
  return with_16_bit_storage(call.p.dtype, [&](auto t) {
    using T = decltype(t);
    const StreamArgs<T> a = stream_args<T>(call);
    if (const cudaError_t e = hsa_stream_means(a, true, call.stream); e != cudaSuccess) return e;
    return with_query_kernels(call.p, [&](auto d, auto levels, auto drop) {
      return launch_queries<d, levels>(stream_mma_forward_kernel<T, d, levels, drop>, a, 1, call.stream);
    });
  });
}

}  // namespace strata::cuda
