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
  if (i < head.tokens) {
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
  if (i >= head.tokens) return 0;
  if (a.g.dlse != nullptr) sum -= static_cast<const float*>(a.g.dlse)[head.token(i)];
  if (lane_of_thread() % 2 == 0) {
    const float lse = static_cast<const float*>(a.o.lse)[head.token(i)];
    reinterpret_cast<float2*>(a.deltas)[head.token(i)] = make_float2(lse == -INFINITY ? INFINITY : lse * kLog2e, sum);
  }
  return sum;
}

// The level of a gradient: level 0 has an accumulator of its own, the others share one in pairs, in which rows 0 .. 7
// are those of an odd level and rows 8 .. 15 those of the level above it. Row g of both is the part of a coarse row
// that queries 2g and 2g + 1 have. A pass has two accumulators; there are more passes for more levels.
struct QueryPass {
  int number;
  __device__ int level(int accumulator) const { return number == 0 ? accumulator : 4 * number - 1 + 2 * accumulator; }
  static int count(int levels) { return levels <= 3 ? 1 : 1 + levels / 4; }
};

template <class T, int D, int kLevels>
struct QueryGradients {
  using Queries = QueryBlock<T, D, kLevels>;
  static constexpr int kSums = kLevels == 1 ? 1 : 2;
  const Queries& queries;
  QueryPass pass;
  float sum[kSums][D / 8][4] = {};

  __device__ void add(const float (&ds)[2][4], const typename Queries::Range& range) {
    uint32_t whole[4], pairs[2];  // pairs: of neighbouring queries
    tile_operand<T>(whole, ds);
#pragma unroll
    for (int n = 0; n < 2 && kLevels > 1; ++n) pairs[n] = pack(ds[n][0] + ds[n][2], ds[n][1] + ds[n][3], T());
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
      const int level = kLevels == 1 ? 0 : pass.level(x);
      if (level >= queries.levels()) break;
      if (level == 0) {
        product(sum[x], whole, range, 0);
        continue;
      }
      const uint32_t upper[4] = {pairs[0], 0, pairs[1], 0}, lower[4] = {0, pairs[0], 0, pairs[1]};
      product(sum[x], upper, range, level);
      if (level + 1 < queries.levels()) product(sum[x], lower, range, level + 1);
    }
  }
  __device__ static void product(float (&to)[D / 8][4], const uint32_t (&left)[4], const typename Queries::Range& range,
                                 int level) {
    const int slot = range.key_slot(level, left_lane_row());
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) by_rows<T, D>(to[n], to[n + 1], left, range.key_tile(level), slot, n);
  }

  // Writes dq of level 0; returns this lane's part of the gradient of its weight.
  __device__ float store_fine() const {
    const StreamHead<T>& head = queries.head;
    const HsaStreamProblem& p = head.a.p;
    const Rows<T> to = rows_of<T>(head.a.g.dq[0], head.batch, head.head);
    const float scale = static_cast<float>(p.scale), weight = head.level_weight(0);
    float part = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = queries.mine + tile_query(half);
      T* const row = to.data + i * to.stride;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int channel = 8 * n + 2 * (lane_of_thread() % 4);
        if (i > queries.last || channel >= p.head_size) continue;
        const float x = sum[0][n][2 * half] * scale, y = sum[0][n][2 * half + 1] * scale;
        reinterpret_cast<uint32_t&>(row[channel]) = pack(weight * x, weight * y, T());
        if (head.a.level_parts == nullptr || (x == 0 && y == 0)) continue;
        const float2 own = unpack(queries.q[n / 2][n % 2 * 2 + half], T());
        part += x * own.x + y * own.y;
      }
    }
    return part;
  }
  // Leaves an accumulator of two levels in shared memory: (which of the two, row of level 1, channel).
  __device__ void leave(float* parts, int x) const {
    constexpr int kPairs = QueryThreads<kLevels>::kRows / 2;
    const int row = warp_of_thread() * 8 + lane_of_thread() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<float2*>(parts + (half * kPairs + row) * D + 8 * n + 2 * (lane_of_thread() % 4)) =
            make_float2(sum[x][n][2 * half], sum[x][n][2 * half + 1]);
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

// Writes dq of a coarse level, and this block's part of the gradient of its weight. parts: (row of level 1, channel).
template <class T, int D, int kLevels>
__device__ void store_coarse(const QueryBlock<T, D, kLevels>& queries, int level, const float* parts, float* scratch,
                             int tile) {
  using Threads = QueryThreads<kLevels>;
  const StreamHead<T>& head = queries.head;
  const StreamArgs<T>& a = head.a;
  const Rows<T> to = rows_of<T>(a.g.dq[level], head.batch, head.head);
  const Rows<const T> q = rows_of<const T>(a.p.q[level], head.batch, head.head);
  const float scale = static_cast<float>(a.p.scale), weight = head.level_weight(level);
  const int c = static_cast<int>(threadIdx.x) % D, in_row = 1 << (level - 1);
  float part = 0;
  for (int r = static_cast<int>(threadIdx.x) / D; r < Threads::kRows >> level; r += Threads::kThreads / D) {
    const int row = (queries.first >> level) + r;
    if ((row << level) > queries.last || c >= a.p.head_size) continue;
    float sum = 0;
    for (int x = 0; x < in_row; ++x) sum += parts[(r * in_row + x) * D + c];
    to.at(row, c) = static_cast<T>(scale * weight * sum);
    if (sum != 0) part += scale * sum * static_cast<float>(q.at(row, c));
  }
  store_level_part(head, level, tile, part, scratch);
}

template <class T, int D, int kLevels, bool kDrop>
__global__ void __launch_bounds__(QueryThreads<kLevels>::kThreads, query_blocks(D, kLevels, true))
    stream_mma_query_kernel(const __grid_constant__ StreamArgs<T> a, int tiles, QueryShape shape) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ float scratch[QueryThreads<kLevels>::kWarps];
  const HsaStreamProblem& p = a.p;
  const StreamHead<T> head(a, static_cast<int>(blockIdx.x) / tiles);
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  using Queries = QueryBlock<T, D, kLevels>;
  if (tile * Queries::Threads::kRows >= head.tokens) return;  // of a packed sequence that is shorter
  const Queries queries(head, shape, tile, memory);
  const QueryPass pass{kLevels <= 3 ? 0 : static_cast<int>(blockIdx.y)};
  uint32_t dout[D / 16][4];
  queries.load_queries(dout, a.g.dout, p.value_size);
  const float row_delta = delta_of(head, queries.mine);
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = queries.mine + tile_query(half);
    const float x = i <= queries.last ? static_cast<const float*>(a.o.lse)[head.token(i)] : -INFINITY;
    lse[half] = x == -INFINITY ? INFINITY : x * kLog2e;  // no weight at all
    delta[half] = __shfl_sync(~0u, row_delta, 2 * tile_query(half));
  }
  QueryGradients<T, D, kLevels> gradients{queries, pass};
  queries.each_tile([&](float(&s)[2][4], const typename Queries::Range& range) {
    float ds[2][4] = {};
    by_right_rows<T, D>(ds, dout, range.value_tile(), right_lane_row());
    if constexpr (kDrop)
      each_of_tile([&](int half, int n, int i, int y) {
        ds[n][i] *= head.kept(queries.mine + tile_query(half), range.piece.height, range.begin() + y);
      });
    each_of_tile(
        [&](int half, int n, int i, int) { ds[n][i] = fast_exp2(s[n][i] - lse[half]) * (ds[n][i] - delta[half]); });
    if (a.positions != nullptr && pass.number == 0) {
      each_of_tile([&](int half, int n, int i, int y) {
        const int64_t at = ds[n][i] == 0 ? -1 : range.position(half, y);
        if (at >= 0) add_fixed_point(a.positions + at, ds[n][i]);
      });
    }
    gradients.add(ds, range);
  });
  if (pass.number == 0) store_level_part(head, 0, tile, gradients.store_fine(), scratch);
  if constexpr (kLevels > 1) {
    float* const parts = reinterpret_cast<float*>(memory);
    for (int x = pass.number == 0 ? 1 : 0; x < 2 && pass.level(x) < p.levels; ++x) {
      __syncthreads();
      if (x == 0) gradients.leave(parts, 0);
      if (x == 1) gradients.leave(parts, 1);
      __syncthreads();
      for (int half = 0; half < 2 && pass.level(x) + half < p.levels; ++half)
        store_coarse(queries, pass.level(x) + half, parts + half * Queries::Threads::kRows / 2 * D, scratch, tile);
    }
  }
}

template <class T>
cudaError_t backward(const StreamCall& call) {
  const StreamArgs<T> a = stream_args<T>(call);
  const FixedPointTable positions = position_gradients(a);
  if (const cudaError_t e = positions.clear(call.stream); e != cudaSuccess) return e;
  if (const cudaError_t e = clear_level_parts(a, call.stream); e != cudaSuccess) return e;
  if (const cudaError_t e = hsa_stream_means(a, true, call.stream); e != cudaSuccess) return e;
  int rows = 1;  // queries of a block
  const cudaError_t queries = with_query_kernels(a.p, [&](auto d, auto levels, auto drop) {
    rows = QueryThreads<levels>::kRows;
    return launch_queries<d, levels>(stream_mma_query_kernel<T, d, levels, drop>, a, QueryPass::count(a.p.levels),
                                     call.stream);
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
      with_query_kernels(p, [&](auto d, auto levels, auto) { return query_shape<d, levels>(p.levels).memory; });
  return memory > 0 && hsa_stream_entry_mma_fits(p);
}

}  // namespace strata::cuda
