// The tiles of the HKT backward with mma.sync (hkt_backward_mma.cuh): shared memory, and the second round of products.
#pragma once

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
  static constexpr int kRow = Tile::D * 2, kWide = kSide * 2;  // bytes of an smem_descriptor's row; of a row of P and G
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
        ldmatrix_trans(a, sums + tile_offset<kSide>(16 * kk + lane / 16 * 8 + lane % 8, 2 * row_tile() + lane / 8 % 2));
      } else {
        ldmatrix(a, sums + tile_offset<kSide>(16 * row_tile() + lane % 16, 2 * kk + lane / 16));
      }
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        const int second = kColumns > 1 ? lane / 16 : 0;
        ldmatrix_trans(b, rows + tile_offset<D>(16 * kk + lane % 16, column() + n + second));
        mma_sync(acc[n], a, b[0], b[1], T());
        if constexpr (kColumns > 1) mma_sync(acc[n + 1], a, b[2], b[3], T());
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

}  // namespace
}  // namespace strata::cuda
