// A warp and tiles of 16 rows in shared memory (tile.cuh): 16 x 16 products of rows with rows, and their products with
// rows. Of a 16 x 16 matrix x[n][2 half + e], a lane holds row lane / 4 + 8 half, column 8 n + 2 (lane % 4) + e.
#pragma once

#include "cuda/tile.cuh"

namespace strata::cuda {

constexpr int kTileRows = 16;

__device__ inline int tile_lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int tile_row(int half) { return tile_lane() / 4 + 8 * half; }

// f(half, n, 2 half + e, column) for all eight numbers of this lane.
template <class F>
__device__ inline void each_of_tile(const F& f) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) f(half, n, 2 * half + e, 8 * n + 2 * (tile_lane() % 4) + e);
    }
  }
}

// x += left rows x right rows, over D channels.
template <class T, int D>
__device__ inline void rows_by_rows(float (&x)[2][4], uint32_t left, uint32_t right) {
  const int lane = tile_lane();
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    uint32_t l[4], r[4];
    load_matrices(l, left + tile_offset<D>(lane % 16, 2 * kk + lane / 16));
    load_matrices(r, right + tile_offset<D>(lane / 16 * 8 + lane % 8, 2 * kk + lane / 8 % 2));
    multiply_add(x[0], l, r[0], r[1], T());
    multiply_add(x[1], l, r[2], r[3], T());
  }
}

// x as the left operand of a product over its columns.
template <class T>
__device__ inline void tile_operand(uint32_t (&left)[4], const float (&x)[2][4]) {
  left[0] = pack(x[0][0], x[0][1], T());
  left[1] = pack(x[0][2], x[0][3], T());
  left[2] = pack(x[1][0], x[1][1], T());
  left[3] = pack(x[1][2], x[1][3], T());
}

// x += left x channels 8 n .. 8 n + 15 of the rows.
template <class T, int D>
__device__ inline void by_rows(float (&x0)[4], float (&x1)[4], const uint32_t (&left)[4], uint32_t rows, int n) {
  uint32_t r[4];
  load_matrices_transposed(r, rows + tile_offset<D>(tile_lane() % 16, n + tile_lane() / 16));
  multiply_add(x0, left, r[0], r[1], T());
  multiply_add(x1, left, r[2], r[3], T());
}

// Over the four lanes that share rows.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace strata::cuda
