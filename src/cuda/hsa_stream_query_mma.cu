// Streaming attention backward with mma.sync: the gradients of the queries (hsa_stream_query_mma.cuh), and the
// order of all kernels of the backward pass.
#include "cuda/hsa_stream_query_mma.cuh"

namespace strata::cuda {
namespace {

// <dout, out> - dlse of row lane / 2, which becomes a number of that query for the gradients of the entries.
template <class T>
__device__ float delta_of(const StreamHead<T>& head, int first) {
  const StreamArgs<T>& a = head.a;
  const int i = first + lane_of_thread() / 2;
  float sum = 0;
  if (i < a.p.tokens) {
    const Rows<const T> dout = rows_of<const T>(a.g.dout, head.batch, head.head),
                        out = rows_of<const T>(a.o.out, head.batch, head.head);
    for (int chunk = lane_of_thread() % 2; chunk < a.p.value_size / 8; chunk += 2) {
      const uint4 x = *reinterpret_cast<const uint4*>(&dout.at(i, chunk * 8)),
                  y = *reinterpret_cast<const uint4*>(&out.at(i, chunk * 8));
      const T *xs = reinterpret_cast<const T*>(&x), *ys = reinterpret_cast<const T*>(&y);
#pragma unroll
      for (int c = 0; c < 8; ++c) sum += static_cast<float>(xs[c]) * static_cast<float>(ys[c]);
    }
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  if (i >= a.p.tokens) return 0;
  if (a.g.dlse != nullptr) sum -= static_cast<const float*>(a.g.dlse)[head.token(i)];
  if (lane_of_thread() % 2 == 0) {
    const float lse = static_cast<const float*>(a.o.lse)[head.token(i)];
    reinterpret_cast<float2*>(a.deltas)[head.token(i)] = make_float2(lse == -INFINITY ? INFINITY : lse * kLog2e, sum);
  }
  return sum;
}

// dq of the levels above the first, of the 16 queries of a warp: sums in shared memory.
template <class T, int D>
struct CoarseGradients {
  float* sums;

  __device__ float* row(int level, int r) const { return sums + (coarse_rows<kTileRows>(level) + r) * D; }
  __device__ void clear(int levels) const {
    for (int at = lane_of_thread(); at < coarse_rows<kTileRows>(levels) * D; at += 32) sums[at] = 0;
    __syncwarp();
  }
  // ds: 16 queries x 16 entries. The queries of a coarse row are added first; the sum stays in the first one's place.
  template <class Range>
  __device__ void add(const float (&ds)[2][4], const Range& range, int levels) const {
    float sum[2][4];
    each_of_tile([&](int, int n, int i, int) { sum[n][i] = ds[n][i]; });
    for (int level = 1; level < levels; ++level) {
      add_row_pairs(sum, level);
      float own[2][4];
      each_of_tile(
          [&](int half, int n, int i, int) { own[n][i] = leads_level(tile_row(half), level) ? sum[n][i] : 0.0f; });
      uint32_t left[4];
      tile_operand<T>(left, own);
      const int slot = range.key_slot(level, left_lane_row());
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        float x[2][4] = {};
        by_rows<T, D>(x[0], x[1], left, range.key_tile(level), slot, n);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (!leads_level(tile_row(half), level)) continue;
            float2& to = *reinterpret_cast<float2*>(row(level, tile_row(half) >> min(level, 4)) + 8 * (n + m) +
                                                    2 * (lane_of_thread() % 4));
            to.x += x[m][2 * half], to.y += x[m][2 * half + 1];
          }
        }
      }
    }
  }
};

// The sum over the block's threads, in a fixed order.
template <class T>
__device__ void store_level_part(const StreamHead<T>& head, int level, int tile, float part, float* scratch) {
  const StreamArgs<T>& a = head.a;
  if (a.level_parts == nullptr) return;
  part = warp_sum(part);
  __syncthreads();
  if (lane_of_thread() == 0) scratch[warp_of_thread()] = part;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) sum += scratch[w];
  a.level_parts[(head.stream * a.p.levels + level) * a.p.tokens + tile] = sum;
}

// Writes dq of the coarse levels and this block's part of the gradient of their weights. `sums`: of all warps.
template <class T, int D, int kLevels>
__device__ void store_coarse(const StreamHead<T>& head, const QueryBlock<T, D, kLevels>& queries, float* sums,
                             float* scratch, int tile) {
  const StreamArgs<T>& a = head.a;
  const float scale = static_cast<float>(a.p.scale);
  const int warp_rows = coarse_rows<kTileRows>(a.p.levels);
  for (int level = 1; level < a.p.levels; ++level) {
    const int in_warp = max(1, kTileRows >> level), warps = level <= 4 ? 1 : 1 << (level - 4);
    const Rows<T> to = rows_of<T>(a.g.dq[level], head.batch, head.head);
    const Rows<const T> q = rows_of<const T>(a.p.q[level], head.batch, head.head);
    const float weight = head.level_weight(level);
    float part = 0;
    for (int item = static_cast<int>(threadIdx.x); item < (QueryThreads<kLevels>::kRows >> level) * a.p.head_size;
         item += QueryThreads<kLevels>::kThreads) {
      const int r = item / a.p.head_size, c = item % a.p.head_size, row = (queries.first >> level) + r;
      if ((row << level) > queries.last) continue;
      float sum = 0;
      for (int w = 0; w < warps; ++w) {
        const int warp = r / in_warp * warps + w;
        sum += sums[(warp * warp_rows + coarse_rows<kTileRows>(level) + r % in_warp) * D + c];
      }
      to.at(row, c) = static_cast<T>(scale * weight * sum);
      if (sum != 0) part += scale * sum * static_cast<float>(q.at(row, c));
    }
    store_level_part(head, level, tile, part, scratch);
  }
}

template <class T, int D, int kLevels>
__global__ void __launch_bounds__(QueryThreads<kLevels>::kThreads, query_blocks(D, kLevels))
    stream_mma_query_kernel(const __grid_constant__ StreamArgs<T> a, int tiles, QueryShape shape) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ float scratch[QueryThreads<kLevels>::kWarps];
  const HsaStreamProblem& p = a.p;
  const StreamHead<T> head(a, static_cast<int>(blockIdx.x) / tiles);
  const int tile = static_cast<int>(blockIdx.x) % tiles, levels = levels_of<kLevels>(p);
  using Queries = QueryBlock<T, D, kLevels>;
  const Queries queries(head, shape, tile, memory, true);
  float* const sums = reinterpret_cast<float*>(memory + query_memory<D, kLevels>(levels, false));
  const CoarseGradients<T, D> gradients{sums + warp_of_thread() * coarse_rows<kTileRows>(levels) * D};
  gradients.clear(levels);
  uint32_t dout[D / 16][4];
  load_operand<T, D>(dout, rows_of<const T>(a.g.dout, head.batch, head.head), queries.mine, queries.last + 1,
                     p.value_size);
  const float row_delta = delta_of(head, queries.mine);
  float lse[2], delta[2], dq[D / 8][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = queries.mine + tile_row(half);
    const float x = i <= queries.last ? static_cast<const float*>(a.o.lse)[head.token(i)] : -INFINITY;
    lse[half] = x == -INFINITY ? INFINITY : x * kLog2e;  // no weight at all
    delta[half] = __shfl_sync(~0u, row_delta, 2 * tile_row(half));
  }
  queries.each_tile([&](float(&s)[2][4], const typename Queries::Range& range) {
    float ds[2][4] = {};
    by_right_rows<T, D>(ds, dout, range.value_tile(), right_lane_row());
    each_of_tile([&](int half, int n, int i, int y) {
      const float weight = fast_exp2(s[n][i] - lse[half]);
      ds[n][i] = weight * (ds[n][i] - delta[half]);
      if (a.positions == nullptr || ds[n][i] == 0) return;
      const int64_t at = range.position(half, y);
      if (at >= 0) add_fixed_point(a.positions + at, ds[n][i]);
    });
    uint32_t left[4];
    tile_operand<T>(left, ds);
    const int slot = range.key_slot(0, left_lane_row());
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) by_rows<T, D>(dq[n], dq[n + 1], left, range.key_tile(0), slot, n);
    if constexpr (kLevels > 1) gradients.add(ds, range, levels);
  });
  const Rows<T> to = rows_of<T>(a.g.dq[0], head.batch, head.head);
  const float scale = static_cast<float>(p.scale), weight = head.level_weight(0);
  float part = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = queries.mine + tile_row(half);
    T* const row = to.data + i * to.stride;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int channel = 8 * n + 2 * (lane_of_thread() % 4);
      if (i > queries.last || channel >= p.head_size) continue;
      const float x = dq[n][2 * half] * scale, y = dq[n][2 * half + 1] * scale;
      reinterpret_cast<uint32_t&>(row[channel]) = pack(weight * x, weight * y, T());
      if (a.level_parts == nullptr || (x == 0 && y == 0)) continue;
      const float2 own = unpack(queries.q[n / 2][n % 2 * 2 + half], T());
      part += x * own.x + y * own.y;
    }
  }
  store_level_part(head, 0, tile, part, scratch);
  if constexpr (kLevels == 1) return;
  __syncthreads();
  store_coarse(head, queries, sums, scratch, tile);
}

template <class T>
cudaError_t backward(const StreamCall& call) {
  const StreamArgs<T> a = stream_args<T>(call);
  const FixedPointTable positions = position_gradients(a);
  if (const cudaError_t e = positions.clear(call.stream); e != cudaSuccess) return e;
  if (const cudaError_t e = hsa_stream_means(a, true, call.stream); e != cudaSuccess) return e;
  int rows = 1;  // queries of a block
  const cudaError_t queries = with_query_kernels(a.p, [&](auto d, auto levels) {
    rows = QueryThreads<levels>::kRows;
    return launch_queries<d, levels>(stream_mma_query_kernel<T, d, levels>, a, true, call.stream);
  });
  if (queries != cudaSuccess) return queries;
  for (int level = 0; level < a.p.levels; ++level) {
    const cudaError_t e = hsa_stream_level_gradient(a, level, (a.p.tokens + rows - 1) / rows, call.stream);
    if (e != cudaSuccess) return e;
  }
  if (const cudaError_t e = hsa_stream_entry_gradient_mma(a, call.stream); e != cudaSuccess) return e;
  if (const cudaError_t e = hsa_stream_weight_gradient(a, call.stream); e != cudaSuccess) return e;
  return positions.convert(static_cast<float*>(a.g.dpositions), call.stream);
}

}  // namespace

cudaError_t hsa_stream_backward_mma(const StreamCall& call) {
  return with_16_bit_storage(call.p.dtype, [&](auto t) { return backward<decltype(t)>(call); });
}

bool hsa_stream_mma_fits(const HsaStreamProblem& p) {
  const int memory =
      with_query_kernels(p, [&](auto d, auto levels) { return query_shape<d, levels>(p.levels, true).memory; });
  return memory > 0 && hsa_stream_entry_mma_fits(p);
}

}  // namespace strata::cuda
