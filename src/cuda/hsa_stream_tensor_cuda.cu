// Streaming HSA on tensor cores. A warp has 16 neighbouring queries; at every height, those see at most a few tiles of
// 16 entries (with b = 16 exactly one), some of them masked. Backward, 16 neighbouring entries of a height have an
// owner as well, who goes through the queries that see them; where those are many, blocks share them out and their
// parts are added in order.
#include <algorithm>
#include <cmath>

#include "cuda/device.h"
#include "cuda/hsa_stream.cuh"
#include "cuda/tile16.cuh"

namespace strata::cuda {
namespace {

constexpr int kQueryWarps = 4, kMostEntryWarps = 8;
constexpr int kAlone = 128;   // queries that one warp takes on alone; for more there are all warps of a block
constexpr int kPiece = 2048;  // queries of one block
constexpr int kKappaMemory = kTileRows * static_cast<int>(sizeof(float));  // of a warp, beside its tiles

enum Tile { kQ, kK, kV, kDout };

// Rows first .. first + 15 of a dense or strided array, those of `real` (bits) only; the others become zeros.
template <class T, int D>
__device__ inline void load_rows(uint32_t tile, const T* rows, int64_t stride, unsigned real, int channels) {
  constexpr int kStep = 32 / (D / 8);  // rows side by side
  const int r0 = tile_lane() / (D / 8), chunk = tile_lane() % (D / 8);
  const T* row = rows + r0 * stride + chunk * 8;
#pragma unroll
  for (int r = 0; r < kTileRows; r += kStep) {
    const bool there = (real >> (r + r0) & 1) != 0 && chunk * 8 < channels;
    copy_async(tile + tile_offset<D>(r + r0, chunk), there ? row : rows, there ? 16 : 0);
    row += kStep * stride;
  }
}

// The tiles of a warp.
template <class T, int D, int kTiles>
struct WarpTiles {
  static constexpr int kTile = kTileRows * D * 2, kMemory = kTiles * kTile;
  const StreamHead<T>& head;
  uint32_t memory;

  __device__ uint32_t tile(int which) const { return memory + which * kTile; }
  __device__ void load_tokens(int which, const ConstView& view, int first, int channels) const {
    const unsigned real = __ballot_sync(~0u, tile_lane() < kTileRows && first + tile_lane() < head.a.p.tokens);
    load_rows<T, D>(tile(which), &rows_of<const T>(view, head.batch, head.head).at(first, 0), view.stride[2], real,
                    channels);
  }
  // 16 entries from `first` on, below `end`; what lane x gets back is term(x), -inf for those that do not count.
  __device__ float load_entries(int height, int first, int end) const {
    const HsaStreamProblem& p = head.a.p;
    const bool mine = tile_lane() < kTileRows && first + tile_lane() < end;
    const float term = mine ? head.term(height, first + tile_lane()) : -INFINITY;
    const unsigned real = __ballot_sync(~0u, term != -INFINITY);
    if (height == 0) {
      load_rows<T, D>(tile(kK), &rows_of<const T>(p.k, head.batch, head.head).at(first, 0), p.k.stride[2], real,
                      p.head_size);
      load_rows<T, D>(tile(kV), &rows_of<const T>(p.v, head.batch, head.head).at(first, 0), p.v.stride[2], real,
                      p.value_size);
    } else {
      const int64_t at = head.node(height, first);
      load_rows<T, D>(tile(kK), head.a.rounded_k + at * p.head_size, p.head_size, real, p.head_size);
      load_rows<T, D>(tile(kV), head.a.rounded_v + at * p.value_size, p.value_size, real, p.value_size);
    }
    return term;
  }
  __device__ static void arrive() {
    commit_copies();
    wait_copies<0>();
    __syncwarp();
  }
};

bool is_small(const HsaStreamProblem& p) { return p.head_size <= 64 && p.value_size <= 64; }

// 16 queries of a warp: walks over what they see. s: scores, -inf where masked.
template <class T, int D, int kTiles>
struct QueryTile : WarpTiles<T, D, kTiles> {
  int first;  // query

  __device__ QueryTile(const StreamHead<T>& h, uint32_t memory, int first_query)
      : WarpTiles<T, D, kTiles>{h, memory}, first(first_query) {}

  // f(scores, position(half, column)) for every tile of entries.
  template <class F>
  __device__ void each_tile(const F& f) const {
    const StreamHead<T>& head = this->head;
    const int b = head.a.p.branching, last = min(first + kTileRows, static_cast<int>(head.a.p.tokens)) - 1;
    const float scale = static_cast<float>(head.a.p.scale);
    for (int height = 0; height < head.a.heights.count; ++height) {
      const int size = head.size(height), reach = last / size, end = height == 0 ? reach + 1 : reach;
      const int ancestor[2] = {(first + tile_row(0)) / size, (first + tile_row(1)) / size};
      const int family[2] = {ancestor[0] / b * b, ancestor[1] / b * b};
      for (int begin = first / size / b * b; begin < end; begin += kTileRows) {
        __syncwarp();
        const float term = this->load_entries(height, begin, end);
        this->arrive();
        float s[2][4] = {};
        rows_by_rows<T, D>(s, this->tile(kQ), this->tile(kK));
        auto position = [&](int half, int y) { return head.position(height, ancestor[half], begin + y); };
        each_of_tile([&](int half, int n, int i, int y) {
          const float add = __shfl_sync(~0u, term, y);
          const int entry = begin + y;
          const bool seen =
              entry >= family[half] && (entry < ancestor[half] || (height == 0 && entry == ancestor[half]));
          s[n][i] = seen && add != -INFINITY && first + tile_row(half) <= last
                        ? s[n][i] * scale + add + head.position_bias(position(half, y))
                        : -INFINITY;
        });
        f(s, position, height);
      }
    }
  }
};

template <class T, int D>
__global__ void __launch_bounds__(32 * kQueryWarps, D == 64 ? 4 : 3)
    stream_forward_tensor_kernel(const __grid_constant__ StreamArgs<T> a, int tiles) {
  using Queries = QueryTile<T, D, 3>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kQueryWarps + warp;
  if (item >= a.p.batch * a.p.heads * tiles) return;
  const StreamHead<T> head(a, item / tiles);
  const Queries queries(head, shared_address(memory) + warp * Queries::kMemory,
                        static_cast<int>(item % tiles) * kTileRows);
  queries.load_tokens(kQ, a.p.q, queries.first, a.p.head_size);
  float acc[D / 8][4] = {}, peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  queries.each_tile([&](float(&s)[2][4], const auto&, int) {
    float top[2] = {peak[0], peak[1]}, shrink[2];
    each_of_tile([&](int half, int n, int i, int) { top[half] = fmaxf(top[half], s[n][i]); });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = row_max(top[half]);
      const float base = top[half] == -INFINITY ? 0.0f : top[half];
      shrink[half] = fast_exp2((peak[half] - base) * kLog2e);
      sum[half] *= shrink[half];
      peak[half] = top[half];
    }
    each_of_tile([&](int half, int n, int i, int) {
      s[n][i] = fast_exp2((s[n][i] - (peak[half] == -INFINITY ? 0.0f : peak[half])) * kLog2e);
      sum[half] += s[n][i];
    });
    uint32_t left[4];
    tile_operand<T>(left, s);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] *= shrink[i / 2], acc[n + 1][i] *= shrink[i / 2];
      by_rows<T, D>(acc[n], acc[n + 1], left, queries.tile(kV), n);
    }
  });
  const Rows<T> out = rows_of<T>(a.o.out, head.batch, head.head);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = queries.first + tile_row(half);
    const float total = row_sum(sum[half]), inverse = total == 0 ? 0.0f : 1.0f / total;
    if (i >= a.p.tokens) continue;
    if (tile_lane() % 4 == 0)
      static_cast<float*>(a.o.lse)[head.token(i)] = total == 0 ? -INFINITY : peak[half] + __logf(total);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int channel = 8 * n + 2 * (tile_lane() % 4);
      if (channel < a.p.value_size)
        reinterpret_cast<uint32_t&>(out.at(i, channel)) =
            pack(acc[n][2 * half] * inverse, acc[n][2 * half + 1] * inverse, T());
    }
  }
}

// <dout, out> - dlse of row lane / 2.
template <class T>
__device__ float delta_of(const StreamHead<T>& head, int first) {
  const StreamArgs<T>& a = head.a;
  const int i = first + tile_lane() / 2;
  float sum = 0;
  if (i < a.p.tokens) {
    const Rows<const T> dout = rows_of<const T>(a.g.dout, head.batch, head.head),
                        out = rows_of<const T>(a.o.out, head.batch, head.head);
    for (int chunk = tile_lane() % 2; chunk < a.p.value_size / 8; chunk += 2) {
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
  if (tile_lane() % 2 == 0) a.deltas[head.token(i)] = sum;
  return sum;
}

// exp(score - lse): zero for queries that see nothing.
__device__ inline float share_of(float score, float lse) {
  return lse == -INFINITY ? 0.0f : fast_exp2((score - lse) * kLog2e);
}

template <class T, int D>
__global__ void __launch_bounds__(32 * kQueryWarps, D == 64 ? 4 : 3)
    stream_query_gradient_tensor_kernel(const __grid_constant__ StreamArgs<T> a, int tiles) {
  using Queries = QueryTile<T, D, 4>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kQueryWarps + warp;
  if (item >= a.p.batch * a.p.heads * tiles) return;
  const StreamHead<T> head(a, item / tiles);
  const Queries queries(head, shared_address(memory) + warp * Queries::kMemory,
                        static_cast<int>(item % tiles) * kTileRows);
  queries.load_tokens(kQ, a.p.q, queries.first, a.p.head_size);
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
      const float p = share_of(s[n][i], lse[half]);
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
  const Rows<T> to = rows_of<T>(a.g.dq, head.batch, head.head);
  const float scale = static_cast<float>(a.p.scale);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = queries.first + tile_row(half);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int channel = 8 * n + 2 * (tile_lane() % 4);
      if (i < a.p.tokens && channel < a.p.head_size)
        reinterpret_cast<uint32_t&>(to.at(i, channel)) =
            pack(dq[n][2 * half] * scale, dq[n][2 * half + 1] * scale, T());
    }
  }
}

// How the entries of a height are shared out: blocks of `warps`, `team` of them for a tile of 16 entries, `pieces`
// blocks for its queries.
struct EntryShares {
  int tiles, warps, team, pieces;
};
// Bytes of shared memory that a warp has for entries; half as many warps where the chip has less.
int entry_memory(const HsaStreamProblem& p) {
  return is_small(p) ? WarpTiles<__half, 64, 4>::kMemory : WarpTiles<__half, 128, 4>::kMemory;
}
int entry_warps(const HsaStreamProblem& p) {
  return kMostEntryWarps * (entry_memory(p) + kKappaMemory) <= device_properties().shared_memory ? kMostEntryWarps
                                                                                                 : kMostEntryWarps / 2;
}
EntryShares entry_shares(const HsaStreamProblem& p, const StreamHeights& heights, int height) {
  const int64_t size = heights.size[height], b = p.branching;
  const bool aligned = b % kTileRows == 0 || kTileRows % b == 0;  // tiles do not cross families
  const int64_t queries = std::min(p.tokens, (aligned ? std::max<int64_t>(kTileRows, b) : kTileRows - 1 + b) * size);
  const int warps = entry_warps(p);
  return {static_cast<int>((p.tokens / size + kTileRows - 1) / kTileRows), warps, queries > kAlone ? warps : 1,
          static_cast<int>((queries + kPiece - 1) / kPiece)};
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
    for (int c = 2 * tile_lane(); c < channels; c += 64) {
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
  store(dk, a.dk, a.g.dk, a.p.head_size);
  store(dv, a.dv, a.g.dv, a.p.value_size);
  if (tile_lane() == 0) head.store_gradient(height, n, a.p.head_size + a.p.value_size, dkappa);
}

template <class T, int D>
__global__ void __launch_bounds__(32 * kMostEntryWarps, D == 64 ? 2 : 1)
    stream_entry_gradient_tensor_kernel(const __grid_constant__ StreamArgs<T> a, int height, EntryShares shares) {
  using Tiles = WarpTiles<T, D, 4>;
  static_assert(Tiles::kMemory == kTileRows * 2 * D * sizeof(float), "sums are kept where the tiles were");
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ float kappas[kMostEntryWarps][kTileRows];
  const HsaStreamProblem& p = a.p;
  const int warp = static_cast<int>(threadIdx.x) / 32, part = warp % shares.team, leader = warp - part;
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * shares.warps + warp) / shares.team;
  if (item >= p.batch * p.heads * shares.tiles * shares.pieces) return;  // whole blocks, where warps work together
  const int piece = static_cast<int>(item % shares.pieces);
  const StreamHead<T> head(a, item / shares.pieces / shares.tiles);
  const int first = static_cast<int>(item / shares.pieces % shares.tiles) * kTileRows, count = head.count(height);
  const Tiles tiles{head, shared_address(memory) + warp * Tiles::kMemory};
  const float entry_term = tiles.load_entries(height, first, count);
  const int size = head.size(height), b = p.branching;
  float dk[D / 8][4] = {}, dv[D / 8][4] = {}, dkappa[2] = {}, term[2];
  for (int half = 0; half < 2; ++half) term[half] = __shfl_sync(~0u, entry_term, tile_row(half));
  const int start = head.first_query(height, first) + piece * kPiece;
  const int end = min(head.end_query(height, min(first + kTileRows, count) - 1), start + kPiece);
  for (int i0 = start + part * kTileRows; i0 < end; i0 += shares.team * kTileRows) {
    __syncwarp();
    tiles.load_tokens(kQ, p.q, i0, p.head_size);
    tiles.load_tokens(kDout, a.g.dout, i0, p.value_size);
    const int mine = i0 + tile_lane() % kTileRows;
    const float lse = mine < end ? static_cast<const float*>(a.o.lse)[head.token(mine)] : -INFINITY;
    const float delta = mine < end ? a.deltas[head.token(mine)] : 0.0f;
    const int ancestor = mine / size;
    tiles.arrive();
    float s[2][4] = {}, ds[2][4] = {};
    rows_by_rows<T, D>(s, tiles.tile(kK), tiles.tile(kQ));
    rows_by_rows<T, D>(ds, tiles.tile(kV), tiles.tile(kDout));
    each_of_tile([&](int half, int n, int i, int y) {
      const float query_lse = __shfl_sync(~0u, lse, y), query_delta = __shfl_sync(~0u, delta, y);
      const int node = __shfl_sync(~0u, ancestor, y), entry = first + tile_row(half);
      const bool seen = entry >= node / b * b && (entry < node || (height == 0 && entry == node));
      float share = 0;
      if (seen && term[half] != -INFINITY)
        share = share_of(
            s[n][i] * static_cast<float>(p.scale) + term[half] + head.position_bias(head.position(height, node, entry)),
            query_lse);
      s[n][i] = share;
      ds[n][i] = share == 0 ? 0.0f : share * (ds[n][i] - query_delta);
      dkappa[half] += ds[n][i];
    });
    uint32_t shares_left[4], left[4];
    tile_operand<T>(shares_left, s);
    tile_operand<T>(left, ds);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      by_rows<T, D>(dk[n], dk[n + 1], left, tiles.tile(kQ), n);
      by_rows<T, D>(dv[n], dv[n + 1], shares_left, tiles.tile(kDout), n);
    }
  }

  // The sums of the team, in order, where the leader's tiles were: 16 rows of dk and dv.
  auto sync = [&] {
    if (shares.team > 1) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  };
  wait_copies<0>();
  sync();
  float* const sums = reinterpret_cast<float*>(memory + leader * Tiles::kMemory);
  const float scale = static_cast<float>(p.scale);
  for (int turn = 0; turn < shares.team; ++turn) {
    if (turn == part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float total = row_sum(dkappa[half]);
        if (tile_lane() % 4 == 0) kappas[warp][tile_row(half)] = total;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float* const at = sums + tile_row(half) * 2 * D + 8 * n + 2 * (tile_lane() % 4) + e;
            at[0] = (turn == 0 ? 0.0f : at[0]) + dk[n][2 * half + e] * scale;
            at[D] = (turn == 0 ? 0.0f : at[D]) + dv[n][2 * half + e];
          }
        }
      }
    }
    sync();
  }
  auto kappa_of = [&](int row) {
    float sum = 0;
    for (int w = leader; w < leader + shares.team; ++w) sum += kappas[w][row];
    return sum;
  };
  if (shares.pieces == 1) {
    for (int row = part; row < kTileRows && first + row < count; row += shares.team)
      store_entry(head, height, first + row, sums + row * 2 * D, sums + row * 2 * D + D, kappa_of(row));
    return;
  }
  const int channels = p.head_size + p.value_size + 1;
  for (int at = part * 32 + tile_lane(); at < kTileRows * channels; at += shares.team * 32) {
    const int row = at / channels, c = at % channels;
    a.parts[item * kTileRows * channels + at] =
        c == channels - 1 ? kappa_of(row) : sums[row * 2 * D + (c < p.head_size ? c : D + c - p.head_size)];
  }
}

// The pieces of an entry, in order.
template <class T>
__global__ void stream_add_pieces_kernel(const __grid_constant__ StreamArgs<T> a, int height, EntryShares shares,
                                         int64_t items) {
  const int channels = a.p.head_size + a.p.value_size + 1;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= items) return;
  const int64_t tile = item / (kTileRows * channels);
  const int at = static_cast<int>(item % (kTileRows * channels)), row = at / channels;
  const StreamHead<T> head(a, tile / shares.tiles);
  const int n = static_cast<int>(tile % shares.tiles) * kTileRows + row;
  if (n >= head.count(height)) return;
  float sum = 0;
  for (int piece = 0; piece < shares.pieces; ++piece)
    sum += a.parts[(tile * shares.pieces + piece) * kTileRows * channels + at];
  head.store_gradient(height, n, at % channels, sum);
}

template <class Kernel>
cudaError_t allow_memory(Kernel kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <class T, int D>
cudaError_t queries(const StreamArgs<T>& a, bool backward, cudaStream_t stream) {
  const int tiles = static_cast<int>((a.p.tokens + kTileRows - 1) / kTileRows);
  const int memory = kQueryWarps * (backward ? WarpTiles<T, D, 4>::kMemory : WarpTiles<T, D, 3>::kMemory);
  const auto kernel = backward ? stream_query_gradient_tensor_kernel<T, D> : stream_forward_tensor_kernel<T, D>;
  if (const cudaError_t e = allow_memory(kernel, memory); e != cudaSuccess) return e;
  kernel<<<blocks_for(a.p.batch * a.p.heads * tiles, kQueryWarps), 32 * kQueryWarps, memory, stream>>>(a, tiles);
  return cudaGetLastError();
}

template <class T, int D>
cudaError_t entries(const StreamArgs<T>& a, int height, cudaStream_t stream) {
  const EntryShares shares = entry_shares(a.p, a.heights, height);
  const int memory = shares.warps * WarpTiles<T, D, 4>::kMemory;
  const auto kernel = stream_entry_gradient_tensor_kernel<T, D>;
  if (const cudaError_t e = allow_memory(kernel, memory); e != cudaSuccess) return e;
  const int64_t tiles = a.p.batch * a.p.heads * shares.tiles;
  kernel<<<blocks_for(tiles * shares.pieces * shares.team, shares.warps), 32 * shares.warps, memory, stream>>>(
      a, height, shares);
  if (shares.pieces > 1) {
    const int64_t items = tiles * kTileRows * (a.p.head_size + a.p.value_size + 1);
    stream_add_pieces_kernel<T><<<blocks_for(items, 256), 256, 0, stream>>>(a, height, shares, items);
  }
  return cudaGetLastError();
}

}  // namespace

bool hsa_stream_fits_tensor_cores(const HsaStreamProblem& p, const View& out) {
  const int warps = std::max(kQueryWarps, kMostEntryWarps / 2);
  if (warps * (entry_memory(p) + kKappaMemory) > device_properties().shared_memory) return false;
  return p.head_size <= 128 && p.value_size <= 128 && is_wide(p.q, p.head_size) && is_wide(p.k, p.head_size) &&
         is_wide(p.v, p.value_size) && is_wide(out, p.value_size);
}

int64_t hsa_stream_parts(const HsaStreamProblem& p, const StreamHeights& heights) {
  int64_t most = 0;
  for (int height = 0; height < heights.count; ++height) {
    const EntryShares shares = entry_shares(p, heights, height);
    if (shares.pieces > 1)
      most =
          std::max<int64_t>(most, int64_t{shares.tiles} * shares.pieces * kTileRows * (p.head_size + p.value_size + 1));
  }
  return most;
}

template <class T>
cudaError_t hsa_stream_queries(const StreamArgs<T>& a, bool backward, cudaStream_t stream) {
  return is_small(a.p) ? queries<T, 64>(a, backward, stream) : queries<T, 128>(a, backward, stream);
}
template <class T>
cudaError_t hsa_stream_entries(const StreamArgs<T>& a, int height, cudaStream_t stream) {
  return is_small(a.p) ? entries<T, 64>(a, height, stream) : entries<T, 128>(a, height, stream);
}
template cudaError_t hsa_stream_queries(const StreamArgs<__nv_bfloat16>&, bool, cudaStream_t);
template cudaError_t hsa_stream_queries(const StreamArgs<__half>&, bool, cudaStream_t);
template cudaError_t hsa_stream_entries(const StreamArgs<__nv_bfloat16>&, int, cudaStream_t);
template cudaError_t hsa_stream_entries(const StreamArgs<__half>&, int, cudaStream_t);

}  // namespace strata::cuda
