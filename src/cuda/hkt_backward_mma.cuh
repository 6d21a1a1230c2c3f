// HKT backward on tensor cores, deterministic: no atomics, every gradient has one owner. One kernel owns keys and walks
// over queries (dk, dv), one owns queries and walks over keys (dq, da); both compute the scores of 64 x 64 tiles anew.
//
//   P = exp(S - lse)    dS = P * (dO V^T - D)    G^(l) = sums of dS over blocks of 2^l x 2^l, in registers
//   dv += P^T dO        dk^(l) += a_l G^(l)^T q^(l)        dq^(l) += a_l G^(l) k^(l)        (times the scale)
//
// P and G go to shared memory, as operands of the second round of products, whose rows are spread over all warps.
#pragma once

#include <cmath>

#include "cuda/device.h"
#include "cuda/hkt_cuda_kernels.h"
#include "cuda/hkt_scores.cuh"

namespace strata::cuda {
namespace {

constexpr int kSide = 64, kTiles = 2;  // rows of the owner; a warp has 32 queries x 16 keys

// Who owns 64 rows, and how many rows of the other side a tile has: 64, or 32 where shared memory is short.
template <class T_, int D_, bool kOwnKeys_, int kOther_>
struct Tile {
  using T = T_;
  static constexpr int D = D_, kOther = kOther_;
  static constexpr bool kOwnKeys = kOwnKeys_;
  static constexpr int kQueries = kOwnKeys ? kOther : kSide, kKeys = kOwnKeys ? kSide : kOther;
  static constexpr int kWarps = kQueries / 32 * (kKeys / 16), kThreads = 32 * kWarps;

  // Rows of a level of the owner and of the other side, in products of 16.
  static constexpr int row_tiles(int rows, int level) { return rows >> level > 16 ? (rows >> level) / 16 : 1; }
};

// Shared memory, in bytes from its start.
template <class Tile>
struct Layout {
  int levels;
  static constexpr int kRow = Tile::D * 2, kWide = kSide * 2;  // bytes of an operand's row; of a row of P and G
  __host__ __device__ int query_rows() const { return level_begin(Tile::kQueries, levels); }
  __host__ __device__ int queries() const { return 0; }
  __host__ __device__ int dout() const { return queries() + query_rows() * kRow; }
  __host__ __device__ int keys() const { return dout() + Tile::kQueries * kRow; }
  __host__ __device__ int values() const { return keys() + level_begin(Tile::kKeys, levels) * kRow; }
  __host__ __device__ int weights() const { return values() + Tile::kKeys * kRow; }  // P, for the owner of keys
  __host__ __device__ int sums() const { return weights() + (Tile::kOwnKeys ? Tile::kQueries * kWide : 0); }  // G
  __host__ __device__ int row_numbers() const { return sums() + query_rows() * kWide; }
  __host__ __device__ int size() const { return row_numbers() + 2 * Tile::kQueries * 4; }  // lse, D
};

// acc += A B for the part of the product that belongs to this warp: rows of level `kLevel` of the owner, channels of D.
// sums: A^T or A, in tiles of 64 columns; rows: B.
template <class Tile, int kLevel>
struct Product {
  using T = typename Tile::T;
  static constexpr int D = Tile::D;
  static constexpr int kRowTiles = Tile::row_tiles(kSide, kLevel), kColumnWarps = Tile::kWarps / kRowTiles;
  static constexpr int kInnerTiles = Tile::row_tiles(Tile::kOther, kLevel);
  static constexpr int kColumns = D / 8 / kColumnWarps;  // tiles of 8 channels of this warp
  static_assert(kColumns >= 1);

  __device__ static int row_tile() { return static_cast<int>(threadIdx.x) / 32 % kRowTiles; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) / 32 / kRowTiles * kColumns; }

  __device__ static void add(float (&acc)[kColumns][4], uint32_t sums, uint32_t rows) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int kk = 0; kk < kInnerTiles; ++kk) {
      uint32_t a[4], b[4];
      if (Tile::kOwnKeys) {
        load_matrices_transposed(
            a, sums + tile_offset<kSide>(16 * kk + lane / 16 * 8 + lane % 8, 2 * row_tile() + lane / 8 % 2));
      } else {
        load_matrices(a, sums + tile_offset<kSide>(16 * row_tile() + lane % 16, 2 * kk + lane / 16));
      }
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        const int second = kColumns > 1 ? lane / 16 : 0;
        load_matrices_transposed(b, rows + tile_offset<D>(16 * kk + lane % 16, column() + n + second));
        multiply_add(acc[n], a, b[0], b[1], T());
        if constexpr (kColumns > 1) multiply_add(acc[n + 1], a, b[2], b[3], T());
      }
    }
  }

  // Calls f(row, channel, value) for what this thread holds; row counts slots of the tile.
  template <class F>
  __device__ static void each(const float (&acc)[kColumns][4], const F& f) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        f(row_tile() * 16 + lane / 4 + e / 2 * 8, (column() + n) * 8 + 2 * (lane % 4) + e % 2, acc[n][e]);
    }
  }
};

// The sums of one owner over all levels.
template <class Tile>
struct LevelSums {
  float l0[Product<Tile, 0>::kColumns][4] = {}, l1[Product<Tile, 1>::kColumns][4] = {};
  float l2[Product<Tile, 2>::kColumns][4] = {}, l3[Product<Tile, 3>::kColumns][4] = {};
  float l4[Product<Tile, 4>::kColumns][4] = {};

  // Calls f(level, product, sums) for the levels there are.
  template <class F>
  __device__ void each_level(int levels, const F& f) {
    f(0, Product<Tile, 0>(), l0);
    if (levels > 1) f(1, Product<Tile, 1>(), l1);
    if (levels > 2) f(2, Product<Tile, 2>(), l2);
    if (levels > 3) f(3, Product<Tile, 3>(), l3);
    if (levels > 4) f(4, Product<Tile, 4>(), l4);
  }
};

template <class Tile, bool kKeys>
__device__ void load_side(uint32_t tile, const ConstView* views, int levels, int64_t batch, int64_t head, int first,
                          int limit, int channels, bool wide) {
  using T = typename Tile::T;
  constexpr int D = Tile::D, kRows = kKeys ? Tile::kKeys : Tile::kQueries;
#pragma unroll
  for (int l = 0; l < kCudaLevels; ++l) {
    if (l >= levels) break;
    load_tile<D, Tile::kThreads>(tile + level_begin(kRows, l) * D * 2, rows_of<const T>(views[l], batch, head),
                                 first >> l, kRows >> l, (limit + (1 << l) - 1) >> l, channels, wide,
                                 [l](int r) { return kKeys ? key_slot<kTiles>(l, r) : query_slot(l, r); });
  }
}

__device__ inline void store_pair(uint32_t address, uint32_t pair) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pair));
}
template <class T>
__device__ inline void store_number(uint32_t sums, int row, int column, float value) {
  const T number = static_cast<T>(value);
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(sums + tile_offset<kSide>(row, column / 8) + column % 8 * 2),
               "h"(reinterpret_cast<const uint16_t&>(number)));
}

// G of levels 1 and above, out of the dS that this warp holds: first within the thread, then with its neighbours.
template <class T, int kQueries>
__device__ void store_sums(const float (&ds)[2][kTiles][4], uint32_t sums, int row, int key, int levels,
                           const float* factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  float x[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) x[e] = ds[0][0][e] + ds[0][1][e] + ds[1][0][e] + ds[1][1][e];
  const uint32_t level1 = sums + level_begin(kQueries, 1) * kSide * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    store_number<T>(level1, row / 2 + g + 8 * half, key / 2 + 2 * t, x[2 * half] * factor[1]);
    store_number<T>(level1, row / 2 + g + 8 * half, key / 2 + 2 * t + 1, x[2 * half + 1] * factor[1]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float y = x[2 * half] + x[2 * half + 1];
    y += __shfl_xor_sync(~0u, y, 4);
    if (levels > 2 && g % 2 == 0)
      store_number<T>(sums + level_begin(kQueries, 2) * kSide * 2, row / 4 + (g + 8 * half) / 2, key / 4 + t,
                      y * factor[2]);
    y += __shfl_xor_sync(~0u, y, 1);
    y += __shfl_xor_sync(~0u, y, 8);
    if (levels > 3 && g % 4 == 0 && t % 2 == 0)
      store_number<T>(sums + level_begin(kQueries, 3) * kSide * 2, row / 8 + (g + 8 * half) / 4, key / 8 + t / 2,
                      y * factor[3]);
    y += __shfl_xor_sync(~0u, y, 2);
    y += __shfl_xor_sync(~0u, y, 16);
    if (levels > 4 && lane == 0)
      store_number<T>(sums + level_begin(kQueries, 4) * kSide * 2, row / 16 + half, key / 16, y * factor[4]);
  }
}

struct Extra {
  const float* deltas;  // (batch, heads, tokens): D
  float* weight_parts;  // (batch, heads, query blocks, kCudaLevels): parts of da
  bool wide;
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::D == 64 ? 2 : 1)
    hkt_backward_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o,
                        const __grid_constant__ HktGradients gr, const __grid_constant__ Extra extra) {
  using T = typename Tile::T;
  constexpr int D = Tile::D, kThreads = Tile::kThreads, kQueries = Tile::kQueries, kKeys = Tile::kKeys;
  constexpr int kOther = Tile::kOther;
  constexpr bool kOwnKeys = Tile::kOwnKeys;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Layout<Tile> layout{p.levels};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp / (kKeys / 16) * 32, key = warp % (kKeys / 16) * 16;  // of this warp, in its tile
  const int batch = static_cast<int>(blockIdx.z), tokens = static_cast<int>(p.tokens), levels = p.levels;
  const int group = static_cast<int>(p.heads / p.key_heads);
  const int limit = p.lengths == nullptr ? tokens : static_cast<int>(max(int64_t{0}, min(p.lengths[batch], p.tokens)));
  const int own_first = static_cast<int>(kOwnKeys ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kSide;
  const int blocks = (limit + kOther - 1) / kOther;
  // The blocks of the other side that this owner meets.
  const int first_block = kOwnKeys && p.causal ? own_first / kOther : 0;
  const int last_block = own_first >= limit      ? first_block
                         : !kOwnKeys && p.causal ? min(blocks, (own_first + kSide - 1) / kOther + 1)
                                                 : blocks;
  const int first_head = static_cast<int>(blockIdx.y) * (kOwnKeys ? group : 1), heads = kOwnKeys ? group : 1;
  const int key_head = first_head / group;

  const uint32_t base = shared_address(memory);
  float* row_numbers = reinterpret_cast<float*>(memory + layout.row_numbers());
  // Rows that only fill a level up are zeros throughout.
  for (int at = static_cast<int>(threadIdx.x) * 16; at < layout.row_numbers(); at += kThreads * 16)
    *reinterpret_cast<uint4*>(memory + at) = make_uint4(0, 0, 0, 0);
  __syncthreads();

  auto load_queries = [&](int head, int first) {
    load_side<Tile, false>(base + layout.queries(), p.q, levels, batch, head, first, limit, p.head_size, extra.wide);
    load_tile<D, kThreads>(base + layout.dout(), rows_of<const T>(gr.dout, batch, head), first, kQueries, limit,
                           p.value_size, extra.wide, [](int r) { return query_slot(0, r); });
    const int64_t line = (static_cast<int64_t>(batch) * p.heads + head) * p.tokens;
    for (int r = static_cast<int>(threadIdx.x); r < 2 * kQueries; r += kThreads) {
      const int at = first + r % kQueries;
      const float* from = r < kQueries ? static_cast<const float*>(o.lse) : extra.deltas;
      row_numbers[r] = at < limit ? from[line + at] : (r < kQueries ? -INFINITY : 0.0f);
    }
  };
  auto load_keys = [&](int first) {
    load_side<Tile, true>(base + layout.keys(), p.k, levels, batch, key_head, first, limit, p.head_size, extra.wide);
    load_tile<D, kThreads>(base + layout.values(), rows_of<const T>(p.v, batch, key_head), first, kKeys, limit,
                           p.value_size, extra.wide, [](int r) { return key_slot<kTiles>(0, r); });
  };
  if (kOwnKeys) {
    load_keys(own_first);
  } else {
    load_queries(first_head, own_first);
  }

  LevelSums<Tile> sums;
  float dv[kOwnKeys ? Product<Tile, 0>::kColumns : 1][4] = {};
  using Scores = ScoreTile<T, D, kQueries, kKeys, kTiles>;
  const Scores tile{base + layout.queries(), base + layout.keys(), row, key};
  for (int head = first_head; head < first_head + heads; ++head) {
    const float* a = static_cast<const float*>(p.weights) + head * levels;
    const LevelWeights w = level_weights(a, levels);
    const float full_scale = w.finest * static_cast<float>(p.scale) * kLog2e;
    float factor[kCudaLevels];  // of G: what differs between the heads that share keys
#pragma unroll
    for (int l = 0; l < kCudaLevels; ++l) factor[l] = kOwnKeys && l < levels ? a[l] : 1.0f;
    const Rows<const T> bias = rows_of<const T>(p.bias, batch, head);
    const Rows<T> dbias = rows_of<T>(gr.dbias, batch, head);

    for (int block = first_block; block < last_block; ++block) {
      const int first_row = kOwnKeys ? block * kOther : own_first, first_key = kOwnKeys ? own_first : block * kOther;
      if (kOwnKeys) {
        load_queries(head, first_row);
      } else {
        load_keys(first_key);
      }
      commit_copies();
      wait_copies<0>();
      __syncthreads();

      float s[2][kTiles][4], dp[2][kTiles][4] = {};
      tile.scores(s, levels, w);
      Scores::finest(dp, base + layout.dout() + tile_offset<D>(row + lane % 16, lane / 16),
                     base + layout.values() + tile_offset<D>(key + lane / 16 * 8 + lane % 8, lane / 8 % 2));
#pragma unroll
      for (int a_ = 0; a_ < 2; ++a_) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int slot = lane / 4 + e / 2 * 8, at_row = row + row_of_slot(a_, slot);
          const int query = first_row + at_row;
          const float lse = row_numbers[at_row], delta = row_numbers[kQueries + at_row];
          const int visible = query < limit && lse != -INFINITY ? (p.causal ? min(limit, query + 1) : limit) : 0;
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            const int at_key = first_key + key + key_of_slot<kTiles>(n, 2 * (lane % 4) + e % 2);
            float score = s[a_][n][e] * full_scale - lse * kLog2e;
            if (at_key >= visible) {
              s[a_][n][e] = dp[a_][n][e] = 0;
              continue;
            }
            if (p.bias.data != nullptr) score += static_cast<float>(bias.at(query, at_key)) * kLog2e;
            s[a_][n][e] = fast_exp2(score);
            dp[a_][n][e] = s[a_][n][e] * (dp[a_][n][e] - delta);
            if (!kOwnKeys && gr.dbias.data != nullptr) dbias.at(query, at_key) = static_cast<T>(dp[a_][n][e]);
          }
        }
      }
      // To shared memory, in the order of slots.
#pragma unroll
      for (int a_ = 0; a_ < 2; ++a_) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            const uint32_t place = tile_offset<kSide>(row + 16 * a_ + lane / 4 + 8 * half, key / 8 + n) + lane % 4 * 4;
            if (kOwnKeys)
              store_pair(base + layout.weights() + place, pack(s[a_][n][2 * half], s[a_][n][2 * half + 1], T()));
            store_pair(base + layout.sums() + place,
                       pack(dp[a_][n][2 * half] * factor[0], dp[a_][n][2 * half + 1] * factor[0], T()));
          }
        }
      }
      if (levels > 1) store_sums<T, kQueries>(dp, base + layout.sums(), row, key, levels, factor);
      __syncthreads();
      const uint32_t other = base + (kOwnKeys ? layout.queries() : layout.keys());
      sums.each_level(levels, [&](int l, auto product, auto& acc) {
        product.add(acc, base + layout.sums() + level_begin(kQueries, l) * kSide * 2,
                    other + level_begin(kOther, l) * D * 2);
      });
      if constexpr (kOwnKeys) Product<Tile, 0>::add(dv, base + layout.weights(), base + layout.dout());
      __syncthreads();
    }
  }

  const float scale = static_cast<float>(p.scale);
  if constexpr (kOwnKeys) {
    auto key_of = [](int l, int slot) {
      return l > 0 ? slot : (slot & ~15) + key_of_slot<kTiles>(slot / 8 % 2, slot % 8);
    };
    sums.each_level(levels, [&](int l, auto product, auto& acc) {
      const Rows<T> dk = rows_of<T>(gr.dk[l], batch, key_head);
      const int rows = (tokens + (1 << l) - 1) >> l;
      product.each(acc, [&](int slot, int channel, float value) {
        const int at = (own_first >> l) + key_of(l, slot);
        if (slot < (kSide >> l) && at < rows && channel < p.head_size)
          dk.at(at, channel) = static_cast<T>(value * scale);
      });
    });
    const Rows<T> to = rows_of<T>(gr.dv, batch, key_head);
    Product<Tile, 0>::each(dv, [&](int slot, int channel, float value) {
      const int at = own_first + key_of(0, slot);
      if (at < tokens && channel < p.value_size) to.at(at, channel) = static_cast<T>(value);
    });
  } else {
    __shared__ float parts[kThreads / 32];
    const float* a = static_cast<const float*>(p.weights) + first_head * levels;
    sums.each_level(levels, [&](int l, auto product, auto& acc) {
      const Rows<T> dq = rows_of<T>(gr.dq[l], batch, first_head);
      const Rows<const T> q = rows_of<const T>(p.q[l], batch, first_head);
      const int rows = (tokens + (1 << l) - 1) >> l, real = (limit + (1 << l) - 1) >> l;
      float part = 0;  // of da_l = scale sum <G k, q>
      product.each(acc, [&](int slot, int channel, float value) {
        const int at = (own_first >> l) + (l > 0 ? slot : (slot & ~31) + row_of_slot(slot / 16 % 2, slot % 16));
        if (slot >= (kSide >> l) || at >= rows || channel >= p.head_size) return;
        dq.at(at, channel) = static_cast<T>(value * scale * a[l]);
        if (at < real) part += value * scale * static_cast<float>(q.at(at, channel));
      });
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) part += __shfl_xor_sync(~0u, part, offset);
      if (lane == 0) parts[warp] = part;
      __syncthreads();
      if (threadIdx.x == 0) {
        float total = 0;
        for (const float one : parts) total += one;
        const int64_t line = static_cast<int64_t>(batch) * p.heads + first_head;
        extra.weight_parts[(line * gridDim.x + own_first / kSide) * kCudaLevels + l] = total;
      }
      __syncthreads();
    });
  }
}

constexpr int kDeltaLanes = 8;

// D_i = <dO_i, O_i> - dlse_i, by a few lanes per row. wide: 16 bytes at a time.
template <class T>
__global__ void delta_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o,
                             const __grid_constant__ HktGradients gr, float* deltas, bool wide) {
  const int64_t line = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kDeltaLanes;
  if (line >= p.batch * p.heads * p.tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
  const int64_t t = line % p.tokens, head = line / p.tokens % p.heads, batch = line / p.tokens / p.heads;
  const Rows<const T> out = rows_of<const T>(o.out, batch, head), dout = rows_of<const T>(gr.dout, batch, head);
  float sum = 0;
  if (wide) {
    for (int c = 8 * lane; c < p.value_size; c += 8 * kDeltaLanes) {
      const uint4 x = *reinterpret_cast<const uint4*>(&out.at(t, c)),
                  y = *reinterpret_cast<const uint4*>(&dout.at(t, c));
      const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 a = unpack(xs[i], T()), b = unpack(ys[i], T());
        sum += a.x * b.x + a.y * b.y;
      }
    }
  } else {
    for (int c = lane; c < p.value_size; c += kDeltaLanes)
      sum += static_cast<float>(out.at(t, c)) * static_cast<float>(dout.at(t, c));
  }
#pragma unroll
  for (int offset = kDeltaLanes / 2; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(0xffu << (threadIdx.x % 32 / kDeltaLanes * kDeltaLanes), sum, offset);
  if (lane == 0) deltas[line] = sum - (gr.dlse == nullptr ? 0.0f : static_cast<const float*>(gr.dlse)[line]);
}

// da_l of a head: its parts, in a fixed order. A warp each.
__global__ void weight_kernel(const __grid_constant__ HktProblem p, const float* parts, int blocks, float* dweights) {
  const int64_t head = blockIdx.x / p.levels, l = blockIdx.x % p.levels;
  double sum = 0;
  for (int64_t at = threadIdx.x; at < p.batch * blocks; at += 32)
    sum += parts[((at / blocks * p.heads + head) * blocks + at % blocks) * kCudaLevels + l];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x == 0) dweights[blockIdx.x] = static_cast<float>(sum);
}

template <class T>
__global__ void zero_bias_kernel(const __grid_constant__ HktProblem p, View dbias) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= p.batch * p.heads * p.tokens * p.tokens) return;
  const int64_t key = at % p.tokens, row = at / p.tokens % p.tokens, line = at / p.tokens / p.tokens;
  rows_of<T>(dbias, line / p.heads, line % p.heads).at(row, key) = static_cast<T>(0.0f);
}

template <class Tile>
cudaError_t launch_owner(const HktProblem& p, const HktOutputs& o, const HktGradients& g, const Extra& extra,
                         cudaStream_t stream) {
  const auto kernel = hkt_backward_kernel<Tile>;
  const int memory = Layout<Tile>{p.levels}.size();
  if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory);
      e != cudaSuccess)
    return e;
  const dim3 grid(static_cast<unsigned>((p.tokens + kSide - 1) / kSide),
                  static_cast<unsigned>(Tile::kOwnKeys ? p.key_heads : p.heads), static_cast<unsigned>(p.batch));
  kernel<<<grid, Tile::kThreads, memory, stream>>>(p, o, g, extra);
  return cudaGetLastError();
}

// Calls run(owner of keys, owner of queries) with the largest tiles that this chip's shared memory holds; false where
// it holds none.
template <class T, class Run>
bool with_tiles(const HktProblem& p, const Run& run) {
  const int available = device_properties().shared_memory;
  auto fits = [&](auto keys, auto queries) {
    return Layout<decltype(keys)>{p.levels}.size() <= available &&
           Layout<decltype(queries)>{p.levels}.size() <= available;
  };
  auto run_if_it_fits = [&](auto keys, auto queries) {
    if (!fits(keys, queries)) return false;
    run(keys, queries);
    return true;
  };
  const int widest = p.head_size > p.value_size ? p.head_size : p.value_size;
  if (widest <= 64) return run_if_it_fits(Tile<T, 64, true, 64>(), Tile<T, 64, false, 64>());
  if (widest <= 128)
    return run_if_it_fits(Tile<T, 128, true, 64>(), Tile<T, 128, false, 64>()) ||
           run_if_it_fits(Tile<T, 128, true, 32>(), Tile<T, 128, false, 32>());
  return run_if_it_fits(Tile<T, 256, true, 64>(), Tile<T, 256, false, 64>()) ||
         run_if_it_fits(Tile<T, 256, true, 32>(), Tile<T, 256, false, 32>());
}

cudaError_t sum_weights(const HktProblem& p, const float* parts, int64_t blocks, const HktGradients& g,
                        cudaStream_t stream) {
  weight_kernel<<<static_cast<unsigned>(p.heads * p.levels), 32, 0, stream>>>(p, parts, static_cast<int>(blocks),
                                                                              static_cast<float*>(g.dweights));
  return cudaGetLastError();
}

}  // namespace

template <class T>
cudaError_t hkt_backward_mma(const HktProblem& p, const HktOutputs& o, const HktGradients& g, float* workspace,
                             cudaStream_t stream) {
  const int64_t lines = p.batch * p.heads * p.tokens, blocks = (p.tokens + kSide - 1) / kSide;
  Extra extra{workspace, workspace + lines, is_wide(p.v, p.value_size) && is_wide(g.dout, p.value_size)};
  for (int l = 0; l < p.levels; ++l)
    extra.wide = extra.wide && is_wide(p.q[l], p.head_size) && is_wide(p.k[l], p.head_size);
  constexpr int kRowsPerBlock = 256 / kDeltaLanes;
  delta_kernel<T><<<static_cast<unsigned>((lines + kRowsPerBlock - 1) / kRowsPerBlock), 256, 0, stream>>>(
      p, o, g, workspace, is_wide(o.out, p.value_size) && is_wide(g.dout, p.value_size));
#ifdef STRATA_HOPPER
  if (use_hopper() && hkt_backward_fits_hopper(p, g)) {
    if (const cudaError_t e = hkt_backward_hopper(p, o, g, workspace, extra.weight_parts, stream); e != cudaSuccess)
      return e;
    return sum_weights(p, extra.weight_parts, hkt_backward_hopper_parts(p), g, stream);
  }
#endif
  if (g.dbias.data != nullptr)
    zero_bias_kernel<T><<<static_cast<unsigned>((lines * p.tokens + 255) / 256), 256, 0, stream>>>(p, g.dbias);
  cudaError_t e = cudaErrorInvalidConfiguration;
  with_tiles<T>(p, [&](auto keys, auto queries) {
    e = launch_owner<decltype(keys)>(p, o, g, extra, stream);
    if (e == cudaSuccess) e = launch_owner<decltype(queries)>(p, o, g, extra, stream);
  });
  if (e != cudaSuccess) return e;
  return sum_weights(p, extra.weight_parts, blocks, g, stream);
}

}  // namespace strata::cuda
