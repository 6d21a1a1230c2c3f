// Streaming HSA backward with mma.sync (hsa_stream_mma.cuh): first the queries, then the entries of every height, from
// the top down. 16 neighbouring entries have one owner, which loops over the queries that see them; where those are
// many, blocks split them, and their partial sums are added in order.
#include <algorithm>

#include "cuda/device.h"
#include "cuda/hsa_stream_mma.cuh"

namespace strata::cuda {
namespace {

// <dout, out> - dlse of row lane / 2.
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
  if (lane_of_thread() % 2 == 0) a.deltas[head.token(i)] = sum;
  return sum;
}

// exp(score - lse): zero for queries that see nothing.
__device__ inline float probability(float score, float lse) {
  return lse == -INFINITY ? 0.0f : fast_exp2((score - lse) * kLog2e);
}

template <class T, int D>
__global__ void __launch_bounds__(32 * kQueryWarps, D == 64 ? 4 : 3)
    stream_mma_query_kernel(const __grid_constant__ StreamArgs<T> a, int tiles) {
  using Queries = QueryTile<T, D, 4>;
  extern __shared__ __align__(1024) unsigned char memory[];
  with_query_tile<Queries>(a, tiles, memory, [&](const StreamHead<T>& head, const Queries& queries) {
    queries.load_tokens(kDout, a.g.dout, queries.first, a.p.value_size);
    const float row_delta = delta_of(head, queries.first);
    float lse[2], delta[2], dq[D / 8][4] = {};
    for (int half = 0; half < 2; ++half) {
      const int i = queries.first + tile_row(half);
      lse[half] = i < a.p.tokens ? static_cast<const float*>(a.o.lse)[head.token(i)] : -INFINITY;
      delta[half] = __shfl_sync(~0u, row_delta, 2 * tile_row(half));
    }
    queries.each_tile([&](float(&s)[2][4], const auto& position, int height) {
      float ds[2][4] = {};
      rows_by_rows<T, D>(ds, queries.tile(kDout), queries.tile(kV));
      each_of_tile([&](int half, int n, int i, int y) {
        const float p = probability(s[n][i], lse[half]);
        ds[n][i] = p == 0 ? 0.0f : p * (ds[n][i] - delta[half]);
        if (a.positions == nullptr || ds[n][i] == 0) return;
        const int64_t at = position(half, y);
        if (at >= 0) add_fixed_point(a.positions + at, ds[n][i]);
      });
      uint32_t left[4];
      tile_operand<T>(left, ds);
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) by_rows<T, D>(dq[n], dq[n + 1], left, queries.tile(kK), n);
    });
    const Rows<T> to = rows_of<T>(a.g.dq[0], head.batch, head.head);
    const float scale = static_cast<float>(a.p.scale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = queries.first + tile_row(half);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int channel = 8 * n + 2 * (lane_of_thread() % 4);
        if (i < a.p.tokens && channel < a.p.head_size)
          reinterpret_cast<uint32_t&>(to.at(i, channel)) =
              pack(dq[n][2 * half] * scale, dq[n][2 * half + 1] * scale, T());
      }
    }
  });
}

// How the queries of a tile of 16 entries are split: blocks of `warps` warps; `team` warps for a tile, `splits` blocks.
struct EntrySplit {
  int tiles, warps, team, splits;
};
constexpr int kMostEntryWarps = 8;
constexpr int kAloneQueries = 128;   // that one warp takes on alone; for more there are all warps of a block
constexpr int kSplitQueries = 2048;  // of one block
constexpr int kKappaMemory = kTileRows * static_cast<int>(sizeof(float));  // bytes of a warp, beside its tiles

// Bytes of shared memory that a warp has for entries; half as many warps where the chip has less.
int entry_memory(const HsaStreamProblem& p) {
  return has_small_heads(p) ? WarpTiles<__half, 64, 4>::kMemory : WarpTiles<__half, 128, 4>::kMemory;
}
int entry_warps(const HsaStreamProblem& p) {
  const bool most = kMostEntryWarps * (entry_memory(p) + kKappaMemory) <= shared_memory_per_block();
  return most ? kMostEntryWarps : kMostEntryWarps / 2;
}
EntrySplit entry_split(const HsaStreamProblem& p, const StreamHeights& heights, int height) {
  const int64_t size = heights.size[height], b = p.branching;
  const bool aligned = b % kTileRows == 0 || kTileRows % b == 0;  // tiles do not cross families
  const int64_t queries = std::min(p.tokens, (aligned ? std::max<int64_t>(kTileRows, b) : kTileRows - 1 + b) * size);
  const int warps = entry_warps(p);
  return {static_cast<int>((p.tokens / size + kTileRows - 1) / kTileRows), warps, queries > kAloneQueries ? warps : 1,
          static_cast<int>((queries + kSplitQueries - 1) / kSplitQueries)};
}

// StreamHead::store_gradient for a whole entry, by a warp, two channels at a time.
template <class T>
__device__ void store_entry(const StreamHead<T>& head, int height, int n, const float* dk, const float* dv,
                            float dkappa) {
  const StreamArgs<T>& a = head.a;
  const int parent = n / a.p.branching;
  const bool has_parent = height + 1 < a.heights.count && parent < head.count(height + 1);
  const int64_t above = has_parent ? head.node(height + 1, parent) : 0;
  const float w = has_parent ? head.mass(height, n) : 0.0f, share = w > 0 ? w / a.mass[above] : 0.0f;
  auto store = [&](const float* from, float* nodes, const View& leaves, int channels) {
    for (int c = 2 * lane_of_thread(); c < channels; c += 64) {
      float2 x = *reinterpret_cast<const float2*>(from + c);
      if (share > 0) {
        const float2 more = *reinterpret_cast<const float2*>(nodes + above * channels + c);
        x.x += share * more.x, x.y += share * more.y;
      }
      if (height > 0) {
        *reinterpret_cast<float2*>(nodes + head.node(height, n) * channels + c) = x;
      } else {
        reinterpret_cast<uint32_t&>(rows_of<T>(leaves, head.batch, head.head).at(n, c)) = pack(x.x, x.y, T());
      }
    }
  };
  store(dk, a.dk, a.g.dk[0], a.p.head_size);
  store(dv, a.dv, a.g.dv, a.p.value_size);
  if (lane_of_thread() == 0) head.store_gradient(height, n, a.p.head_size + a.p.value_size, dkappa);
}

// 16 entries of a height, of a warp: their gradients, summed over its queries.
template <class T, int D>
struct EntryTile : WarpTiles<T, D, 4> {
  const HsaStreamProblem& p;
  int height, first, count;  // the first entry, and how many the height has
  float term[2];
  float dk[D / 8][4] = {}, dv[D / 8][4] = {}, dkappa[2] = {};

  __device__ EntryTile(const StreamHead<T>& h, uint32_t memory, int at_height, int first_entry)
      : WarpTiles<T, D, 4>{h, memory}, p(h.a.p), height(at_height), first(first_entry), count(h.count(at_height)) {
    const float entry_term = this->load_entries(height, first, count);
    for (int half = 0; half < 2; ++half) term[half] = __shfl_sync(~0u, entry_term, tile_row(half));
  }

  // 16 queries from i0 on, below `end`.
  __device__ void add_queries(int i0, int end) {
    const StreamHead<T>& head = this->head;
    const StreamArgs<T>& a = head.a;
    const int b = p.branching;
    __syncwarp();
    this->load_tokens(kQ, p.q[0], i0, p.head_size);
    this->load_tokens(kDout, a.g.dout, i0, p.value_size);
    const int mine = i0 + lane_of_thread() % kTileRows;
    const float lse = mine < end ? static_cast<const float*>(a.o.lse)[head.token(mine)] : -INFINITY;
    const float delta = mine < end ? a.deltas[head.token(mine)] : 0.0f;
    const int ancestor = mine / head.size(height);
    this->arrive();
    float s[2][4] = {}, ds[2][4] = {};
    rows_by_rows<T, D>(s, this->tile(kK), this->tile(kQ));
    rows_by_rows<T, D>(ds, this->tile(kV), this->tile(kDout));
    each_of_tile([&](int half, int n, int i, int y) {
      const float query_lse = __shfl_sync(~0u, lse, y), query_delta = __shfl_sync(~0u, delta, y);
      const int node = __shfl_sync(~0u, ancestor, y), entry = first + tile_row(half);
      const bool seen = entry >= node / b * b && (entry < node || (height == 0 && entry == node));
      float weight = 0;
      if (seen && term[half] != -INFINITY)
        weight = probability(
            s[n][i] * static_cast<float>(p.scale) + term[half] + head.position_bias(head.position(height, node, entry)),
            query_lse);
      s[n][i] = weight;
      ds[n][i] = weight == 0 ? 0.0f : weight * (ds[n][i] - query_delta);
      dkappa[half] += ds[n][i];
    });
    uint32_t left_values[4], left[4];
    tile_operand<T>(left_values, s);
    tile_operand<T>(left, ds);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      by_rows<T, D>(dk[n], dk[n + 1], left, this->tile(kQ), n);
      by_rows<T, D>(dv[n], dv[n + 1], left_values, this->tile(kDout), n);
    }
  }

  // Adds this warp's gradients to 16 rows of dk and dv; the first warp of a team writes them.
  __device__ void add_to(float* sums, float* kappas, bool write) const {
    const float scale = static_cast<float>(p.scale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = quad_sum(dkappa[half]);
      if (lane_of_thread() % 4 == 0) kappas[tile_row(half)] = total;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float* const at = sums + tile_row(half) * 2 * D + 8 * n + 2 * (lane_of_thread() % 4) + e;
          at[0] = (write ? 0.0f : at[0]) + dk[n][2 * half + e] * scale;
          at[D] = (write ? 0.0f : at[D]) + dv[n][2 * half + e];
        }
      }
    }
  }
};

template <class T, int D>
__global__ void __launch_bounds__(32 * kMostEntryWarps, D == 64 ? 2 : 1)
    stream_mma_entry_kernel(const __grid_constant__ StreamArgs<T> a, int height, EntrySplit split) {
  using Tile = EntryTile<T, D>;
  static_assert(Tile::kMemory == kTileRows * 2 * D * sizeof(float), "sums are kept where the tiles were");
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ float kappas[kMostEntryWarps][kTileRows];
  const HsaStreamProblem& p = a.p;
  const int warp = warp_of_thread(), part = warp % split.team, leader = warp - part;
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * split.warps + warp) / split.team;
  if (item >= p.batch * p.heads * split.tiles * split.splits) return;  // whole blocks, where warps work together
  const StreamHead<T> head(a, item / split.splits / split.tiles);
  Tile tile(head, shared_address(memory) + warp * Tile::kMemory, height,
            static_cast<int>(item / split.splits % split.tiles) * kTileRows);
  const int start = head.first_query(height, tile.first) + static_cast<int>(item % split.splits) * kSplitQueries;
  const int end = min(head.end_query(height, min(tile.first + kTileRows, tile.count) - 1), start + kSplitQueries);
  for (int i0 = start + part * kTileRows; i0 < end; i0 += split.team * kTileRows) tile.add_queries(i0, end);

  // The sums of the team, in order, where the leader's tiles were: 16 rows of dk and dv.
  auto sync = [&] {
    if (split.team > 1) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  };
  Tile::arrive();  // a warp without queries has not waited for its entries yet
  sync();
  float* const sums = reinterpret_cast<float*>(memory + leader * Tile::kMemory);
  for (int turn = 0; turn < split.team; ++turn) {
    if (turn == part) tile.add_to(sums, kappas[warp], turn == 0);
    sync();
  }
  auto kappa_of = [&](int row) {
    float sum = 0;
    for (int w = leader; w < leader + split.team; ++w) sum += kappas[w][row];
    return sum;
  };
  if (split.splits == 1) {
    for (int row = part; row < kTileRows && tile.first + row < tile.count; row += split.team)
      store_entry(head, height, tile.first + row, sums + row * 2 * D, sums + row * 2 * D + D, kappa_of(row));
    return;
  }
  const int channels = p.head_size + p.value_size + 1;
  for (int at = part * 32 + lane_of_thread(); at < kTileRows * channels; at += split.team * 32) {
    const int row = at / channels, c = at % channels;
    a.partials[item * kTileRows * channels + at] =
        c == channels - 1 ? kappa_of(row) : sums[row * 2 * D + (c < p.head_size ? c : D + c - p.head_size)];
  }
}

// The splits of an entry, in order.
template <class T>
__global__ void stream_reduce_splits_kernel(const __grid_constant__ StreamArgs<T> a, int height, EntrySplit split,
                                            int64_t items) {
  const int channels = a.p.head_size + a.p.value_size + 1;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= items) return;
  const int64_t tile = item / (kTileRows * channels);
  const int at = static_cast<int>(item % (kTileRows * channels)), row = at / channels;
  const StreamHead<T> head(a, tile / split.tiles);
  const int n = static_cast<int>(tile % split.tiles) * kTileRows + row;
  if (n >= head.count(height)) return;
  float sum = 0;
  for (int s = 0; s < split.splits; ++s) sum += a.partials[(tile * split.splits + s) * kTileRows * channels + at];
  head.store_gradient(height, n, at % channels, sum);
}

template <class T, int D>
cudaError_t entries(const StreamArgs<T>& a, int height, cudaStream_t stream) {
  const EntrySplit split = entry_split(a.p, a.heights, height);
  const int memory = split.warps * EntryTile<T, D>::kMemory;
  const auto kernel = stream_mma_entry_kernel<T, D>;
  if (const cudaError_t e = allow_shared_memory(kernel, memory); e != cudaSuccess) return e;
  const int64_t tiles = a.p.batch * a.p.heads * split.tiles;
  kernel<<<blocks_for(tiles * split.splits * split.team, split.warps), 32 * split.warps, memory, stream>>>(a, height,
                                                                                                           split);
  if (split.splits > 1) {
    const int64_t items = tiles * kTileRows * (a.p.head_size + a.p.value_size + 1);
    stream_reduce_splits_kernel<T><<<blocks_for(items, 256), 256, 0, stream>>>(a, height, split, items);
  }
  return cudaGetLastError();
}

template <class T, int D>
cudaError_t backward(const StreamCall& call) {
  const StreamArgs<T> a = stream_args<T>(call);
  const FixedPointTable positions = position_gradients(a);
  if (const cudaError_t e = positions.clear(call.stream); e != cudaSuccess) return e;
  if (const cudaError_t e = hsa_stream_means(a, true, call.stream); e != cudaSuccess) return e;
  if (const cudaError_t e = launch_queries(stream_mma_query_kernel<T, D>, a, WarpTiles<T, D, 4>::kMemory, call.stream);
      e != cudaSuccess)
    return e;
  for (int height = a.heights.count - 1; height >= 0; --height) {
    if (const cudaError_t e = entries<T, D>(a, height, call.stream); e != cudaSuccess) return e;
  }
  if (const cudaError_t e = hsa_stream_weight_gradient(a, call.stream); e != cudaSuccess) return e;
  return positions.convert(static_cast<float*>(a.g.dpositions), call.stream);
}

}  // namespace

int hsa_stream_mma_shared_memory(const HsaStreamProblem& p) {
  return std::max(kQueryWarps, kMostEntryWarps / 2) * (entry_memory(p) + kKappaMemory);
}

int64_t hsa_stream_partials(const HsaStreamProblem& p, const StreamHeights& heights) {
  int64_t most = 0;
  for (int height = 0; height < heights.count; ++height) {
    const EntrySplit split = entry_split(p, heights, height);
    if (split.splits > 1)
      most =
          std::max<int64_t>(most, int64_t{split.tiles} * split.splits * kTileRows * (p.head_size + p.value_size + 1));
  }
  return most;
}

cudaError_t hsa_stream_backward_mma(const StreamCall& call) {
  return with_16_bit_storage(call.p.dtype, [&](auto t) {
    return has_small_heads(call.p) ? backward<decltype(t), 64>(call) : backward<decltype(t), 128>(call);
  });
}

}  // namespace strata::cuda
