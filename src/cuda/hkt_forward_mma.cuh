// HKT forward with mma.sync (compute capability 8.0 and newer). A block has 128 queries, four warps of 32, and loops
// over tiles of 64 keys with an online softmax; where shared memory is short, tiles are smaller. The values of a tile
// are loaded while its scores are computed, and the next keys while the values are summed up.
#pragma once

#include <cmath>

#include "base/philox.h"
#include "cuda/device.h"
#include "cuda/hkt_kernels.h"
#include "cuda/hkt_scores.cuh"
#include "cuda/launch.cuh"
#include "cuda/online_softmax.cuh"
#include "cuda/views.h"

namespace strata::cuda {
namespace {

template <class T_, int D_, int DV_, int kRows_, int kKeys_>
struct Tile {
  using T = T_;
  static constexpr int D = D_, DV = DV_, kRows = kRows_, kKeys = kKeys_, kThreads = kRows, kTiles = kKeys / 8;
  // Bytes of shared memory: queries and keys of all levels, values.
  static int memory(int levels) {
    return (level_begin(kRows, levels) + level_begin(kKeys, levels)) * D * 2 + kKeys * DV * 2;
  }
};

// What a block computes: the rows of one head, and of their output DV channels.
template <class Tile>
struct Block {
  using T = typename Tile::T;
  static constexpr int D = Tile::D, DV = Tile::DV, kRows = Tile::kRows, kKeys = Tile::kKeys, kTiles = Tile::kTiles;
  const HktProblem& p;
  bool aligned;
  int batch, head, key_head, value_first, value_channels, first_row;
  SequenceLimits limits;

  __device__ Block(const HktProblem& problem, bool aligned_rows) : p(problem), aligned(aligned_rows) {
    // The last rows see most keys, and go first.
    const HktTile at = locate_tile(query_side(p), gridDim.x - 1 - blockIdx.x, kRows);
    batch = static_cast<int>(at.sequence);
    first_row = static_cast<int>(at.tile) * kRows;
    head = static_cast<int>(blockIdx.y);
    key_head = head / static_cast<int>(p.heads / p.key_heads);
    value_first = static_cast<int>(blockIdx.z) * DV;
    value_channels = min(DV, p.value_size - value_first);
    limits = SequenceLimits(p, batch);
  }
  __device__ int2 key_blocks() const { return limits.key_tiles(p, first_row, kRows, kKeys); }

  __device__ void load_queries(uint32_t tile) const {
    load_levels<T, D, Tile::kThreads, kRows>(tile, p.q, p.levels, batch, head, first_row, limits.queries, p.head_size,
                                             aligned, [](int l, int r) { return query_slot(l, r); });
  }
  __device__ void load_keys(uint32_t tile, int first) const {
    load_levels<T, D, Tile::kThreads, kKeys>(tile, p.k, p.levels, batch, key_head, first, limits.keys, p.head_size,
                                             aligned, [](int l, int r) { return key_slot<kTiles>(l, r); });
  }
  __device__ void load_values(uint32_t tile, int first) const {
    Rows<const T> rows = rows_of<const T>(p.v, batch, key_head);
    rows.data += value_first * rows.channel_stride;
    load_tile<DV, Tile::kThreads>(tile, rows, first, kKeys, limits.keys, value_channels, aligned,
                                  [](int r) { return key_slot<kTiles>(0, r); });
  }
};

// The 32 rows of a warp: product a, half of a fragment.
template <class Tile>
struct WarpRows {
  using T = typename Tile::T;
  static constexpr int DV = Tile::DV, kKeys = Tile::kKeys, kTiles = Tile::kTiles;
  const Block<Tile>& block;
  const HktProblem& p;
  int lane, own_first;
  LevelWeights w;
  float full_scale, factor, slope;  // slope: of ALiBi, in units of log 2
  bool with_terms;                  // bias, ALiBi
  float out[2][DV / 8][4] = {};
  OnlineSoftmaxRow rows[2][2];

  __device__ explicit WarpRows(const Block<Tile>& b)
      : block(b),
        p(b.p),
        lane(lane_of_thread()),
        own_first(b.first_row + warp_of_thread() * 32),
        w(level_weights(static_cast<const float*>(p.weights) + b.head * p.levels, p.levels)),
        with_terms(p.bias.data != nullptr || p.slopes != nullptr) {
    full_scale = w.finest * static_cast<float>(p.scale) * kLog2e;
    slope = p.slopes == nullptr ? 0.0f : static_cast<const float*>(p.slopes)[b.head] * kLog2e;
    // exp2(factor S - max), where the sign of the scale (and, with further terms, all of it) is in S already.
    factor = with_terms ? 1.0f : fabsf(full_scale);
  }
  __device__ int row(int a, int half) const { return own_first + row_of_slot(a, lane / 4 + half * 8); }

  __device__ void sign_terms_and_mask(float (&s)[2][kTiles][4], int first_key) const {
    if (full_scale < 0 && !with_terms) {
#pragma unroll
      for (int a = 0; a < 2; ++a)
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[a][n][e] = -s[a][n][e];
    }
    if (!with_terms && !block.limits.is_edge(p, own_first, 32, first_key, kKeys)) return;
    const bool with_bias = p.bias.data != nullptr;
    const Rows<const T> bias = rows_of<const T>(p.bias, block.batch, block.head);
#pragma unroll
    for (int a = 0; a < 2; ++a) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int query = row(a, e / 2);
        const auto visible = block.limits.visible_keys(p, query);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const int key = first_key + key_of_slot<kTiles>(n, 2 * (lane % 4) + e % 2);
          if (!visible.has(key)) {
            s[a][n][e] = -INFINITY;
          } else if (with_terms) {
            s[a][n][e] = s[a][n][e] * full_scale - slope * static_cast<float>(abs(query - key));
            if (with_bias) s[a][n][e] += static_cast<float>(bias.at(query, key)) * kLog2e;
          }
        }
      }
    }
  }

  // s becomes the weights of the tile's keys.
  __device__ void softmax(float (&s)[2][kTiles][4]) {
#pragma unroll
    for (int a = 0; a < 2; ++a) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float rescale =
            rows[a][half].template add<kTiles>(factor, [&](int n, int e) -> float& { return s[a][n][2 * half + e]; });
#pragma unroll
        for (int n = 0; n < DV / 8; ++n) {
          out[a][n][2 * half] *= rescale;
          out[a][n][2 * half + 1] *= rescale;
        }
      }
    }
  }

  // s without the weights that are dropped. The keys of a thread's column are neighbours, eight of them share a draw.
  __device__ void drop(float (&s)[2][kTiles][4], int first_key) const {
    const uint64_t key = dropout_key(p.dropout.state);
    const uint32_t threshold = dropout_threshold(p.dropout.probability);
    const float kept = static_cast<float>(dropout_factor(threshold));
#pragma unroll
    for (int a = 0; a < 2; ++a) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int first = first_key + key_of_slot<kTiles>(0, 2 * (lane % 4) + e % 2);
        const uint32_t bits = kept_bits(key, threshold, block.batch, block.head, row(a, e / 2), first / 8) >> first % 8;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) s[a][n][e] *= (bits >> n & 1) != 0 ? kept : 0.0f;
      }
    }
  }

  // out += weights x values. address: of this lane's part of the first 16 values.
  __device__ void add_values(const float (&s)[2][kTiles][4], uint32_t address) {
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk) {
      uint32_t weight[2][4];
#pragma unroll
      for (int a = 0; a < 2; ++a) {
#pragma unroll
        for (int r = 0; r < 4; ++r)
          weight[a][r] = pack(s[a][2 * kk + r / 2][r % 2 * 2], s[a][2 * kk + r / 2][r % 2 * 2 + 1], T());
      }
#pragma unroll
      for (int n = 0; n < DV / 8; n += 2) {
        uint32_t v[4];
        ldmatrix_trans(v, (address ^ (n << 4)) + kk * 16 * DV * 2);
#pragma unroll
        for (int a = 0; a < 2; ++a) {
          mma_sync(out[a][n], weight[a], v[0], v[1], T());
          mma_sync(out[a][n + 1], weight[a], v[2], v[3], T());
        }
      }
    }
  }

  __device__ void store(const HktOutputs& o) const {
    const Rows<T> result = rows_of<T>(o.out, block.batch, block.head);
    float* lse = static_cast<float*>(o.lse) + hkt_line(p, block.batch, block.head);
#pragma unroll
    for (int a = 0; a < 2; ++a) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float row_lse;
        const float inverse = rows[a][half].finish(factor, row_lse);
        if (row(a, half) >= block.limits.query_rows(p)) continue;
        if (lane % 4 == 0 && block.value_first == 0) lse[row(a, half)] = row_lse;
#pragma unroll
        for (int n = 0; n < DV / 8; ++n)
          store_pair(result, row(a, half), n * 8 + 2 * (lane % 4), out[a][n][2 * half] * inverse,
                     out[a][n][2 * half + 1] * inverse);
      }
    }
  }
  // Two neighbouring channels of a row, of which the second may not exist.
  __device__ void store_pair(const Rows<T>& to, int at, int channel, float x, float y) const {
    const int first = block.value_first, channels = block.value_channels;
    if (block.aligned && channel < channels) {
      reinterpret_cast<uint32_t&>(to.at(at, first + channel)) = pack(x, y, T());
      return;
    }
    if (channel < channels) to.at(at, first + channel) = static_cast<T>(x);
    if (channel + 1 < channels) to.at(at, first + channel + 1) = static_cast<T>(y);
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    hkt_forward_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o, bool aligned) {
  using T = typename Tile::T;
  constexpr int D = Tile::D, DV = Tile::DV, kRows = Tile::kRows, kKeys = Tile::kKeys, kTiles = Tile::kTiles;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t queries = shared_address(memory);
  const uint32_t keys = queries + level_begin(kRows, p.levels) * D * 2;
  const uint32_t values = keys + level_begin(kKeys, p.levels) * D * 2;
  const Block<Tile> block(p, aligned);
  const int2 blocks = block.key_blocks();
  const int lane = lane_of_thread();
  block.load_queries(queries);
  if (blocks.x < blocks.y) block.load_keys(keys, blocks.x * kKeys);
  cp_async_commit();

  WarpRows<Tile> rows(block);
  const ScoreTile<T, D, kRows, kKeys, kTiles> tile{queries, keys, warp_of_thread() * 32, 0};
  for (int i = blocks.x; i < blocks.y; ++i) {
    const int first_key = i * kKeys;
    cp_async_wait<0>();
    __syncthreads();  // the keys have arrived, and no warp reads the values of the last tile any more
    block.load_values(values, first_key);
    cp_async_commit();
    float s[2][kTiles][4];
    tile.scores(s, p.levels, rows.w);
    rows.sign_terms_and_mask(s, first_key);
    rows.softmax(s);
    if (p.dropout.probability > 0) rows.drop(s, first_key);
    cp_async_wait<0>();
    __syncthreads();  // the values have arrived, and no warp reads the keys any more
    if (i + 1 < blocks.y) block.load_keys(keys, first_key + kKeys);
    cp_async_commit();
    rows.add_values(s, values + tile_offset<DV>(lane % 16, lane / 16));
  }
  rows.store(o);
}

template <class Tile>
cudaError_t launch(const HktProblem& p, const HktOutputs& o, bool aligned, cudaStream_t stream) {
  const int memory = Tile::memory(p.levels);
  const auto kernel = hkt_forward_kernel<Tile>;
  if (const cudaError_t e = allow_shared_memory(kernel, memory); e != cudaSuccess) return e;
  const int64_t chunks = (p.value_size + Tile::DV - 1) / Tile::DV;
  const dim3 grid(static_cast<unsigned>(tile_count(query_side(p), Tile::kRows)), static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(chunks));
  kernel<<<grid, Tile::kThreads, memory, stream>>>(p, o, aligned);
  return cudaGetLastError();
}

// Calls run(tile) with the largest tile that this chip's shared memory holds; false where it holds none.
template <class T, class Run>
bool with_tile(const HktProblem& p, const Run& run) {
  const int available = shared_memory_per_block();
  auto run_if_it_fits = [&](auto tile) {
    if (decltype(tile)::memory(p.levels) > available) return false;
    run(tile);
    return true;
  };
  if (p.head_size <= 64 && p.value_size <= 64) return run_if_it_fits(Tile<T, 64, 64, 128, 64>());
  if (p.head_size <= 128)
    return run_if_it_fits(Tile<T, 128, 128, 128, 64>()) || run_if_it_fits(Tile<T, 128, 128, 128, 32>());
  return run_if_it_fits(Tile<T, 256, 128, 128, 64>()) || run_if_it_fits(Tile<T, 256, 128, 128, 32>()) ||
         run_if_it_fits(Tile<T, 256, 128, 64, 32>());
}

}  // namespace

template <class T>
cudaError_t hkt_forward_mma(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  bool aligned = is_aligned(p.v, p.value_size) && is_aligned(o.out, p.value_size);
  for (int l = 0; l < p.levels; ++l)
    aligned = aligned && is_aligned(p.q[l], p.head_size) && is_aligned(p.k[l], p.head_size);
  cudaError_t e = cudaErrorInvalidConfiguration;
  with_tile<T>(p, [&](auto tile) { e = launch<decltype(tile)>(p, o, aligned, stream); });
  return e;
}

}  // namespace strata::cuda
