// A warp and tiles of 16 rows in shared memory (tile.cuh): 16 x 16 products of rows with rows, and their products with
// rows. Of a 16 x 16 matrix x[n][2 half + e], a lane holds row lane / 4 + 8 half, column 8 n + 2 (lane % 4) + e.
#pragma once

#include "cuda/online_softmax.cuh"
#include "cuda/tile.cuh"

namespace strata::cuda {

constexpr int kTileRows = 16;

__device__ inline int tile_row(int half) { return lane_of_thread() / 4 + 8 * half; }

// f(half, n, 2 half + e, column) for all eight numbers of this lane.
template <class F>
__device__ inline void each_of_tile(const F& f) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) f(half, n, 2 * half + e, 8 * n + 2 * (lane_of_thread() % 4) + e);
    }
  }
}

// The rows whose addresses this lane gives to a matrix load: of the left operand of a product of rows with rows (or the
// right one of a product with rows), and of its right operand.
__device__ inline int left_lane_row() { return lane_of_thread() % 16; }
__device__ inline int right_lane_row() { return lane_of_thread() / 16 * 8 + lane_of_thread() % 8; }

// x += left rows x right rows, over D channels. Rows may repeat: this lane's are left_row and right_row of the tiles.
template <class T, int D>
__device__ inline void rows_by_rows(float (&x)[2][4], uint32_t left, int left_row, uint32_t right, int right_row) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    uint32_t l[4], r[4];
    ldmatrix(l, left + tile_offset<D>(left_row, 2 * kk + lane / 16));
    ldmatrix(r, right + tile_offset<D>(right_row, 2 * kk + lane / 8 % 2));
    mma_sync(x[0], l, r[0], r[1], T());
    mma_sync(x[1], l, r[2], r[3], T());
  }
}
template <class T, int D>
__device__ inline void rows_by_rows(float (&x)[2][4], uint32_t left, uint32_t right) {
  rows_by_rows<T, D>(x, left, left_lane_row(), right, right_lane_row());
}

// The same with the left rows in registers (load_operand).
template <class T, int D>
__device__ inline void by_right_rows(float (&x)[2][4], const uint32_t (&left)[D / 16][4], uint32_t right,
                                     int right_row) {
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    uint32_t r[4];
    ldmatrix(r, right + tile_offset<D>(right_row, 2 * kk + lane_of_thread() / 8 % 2));
    mma_sync(x[0], left[kk], r[0], r[1], T());
    mma_sync(x[1], left[kk], r[2], r[3], T());
  }
}

// 16 rows in global memory from `first` on as the left operand of products over their channels; zeros from row `end`
// and from `channels` on. row_of(half): which of the 16 are this lane's.
template <class T, int D, class RowOf>
__device__ inline void load_operand(uint32_t (&left)[D / 16][4], const Rows<const T>& rows, int first, int end,
                                    int channels, const RowOf& row_of) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + row_of(half);
    const T* const from = rows.data + row * rows.stride + 2 * (lane_of_thread() % 4);
#pragma unroll
    for (int chunk = 0; chunk < D / 8; ++chunk)
      left[chunk / 2][chunk % 2 * 2 + half] =
          row < end && 8 * chunk < channels ? *reinterpret_cast<const uint32_t*>(from + 8 * chunk) : 0u;
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

// x += left x channels 8 n .. 8 n + 15 of the rows; this lane's is `row`.
template <class T, int D>
__device__ inline void by_rows(float (&x0)[4], float (&x1)[4], const uint32_t (&left)[4], uint32_t rows, int row,
                               int n) {
  uint32_t r[4];
  ldmatrix_trans(r, rows + tile_offset<D>(row, n + lane_of_thread() / 16));
  mma_sync(x0, left, r[0], r[1], T());
  mma_sync(x1, left, r[2], r[3], T());
}
template <class T, int D>
__device__ inline void by_rows(float (&x0)[4], float (&x1)[4], const uint32_t (&left)[4], uint32_t rows, int n) {
  by_rows<T, D>(x0, x1, left, rows, left_lane_row(), n);
}

// Sums of share * row over 16 rows, as a product whose left operand has one row: f(channel, two neighbouring sums) in
// lanes 0 .. 3. share: of row `lane`; row: which one this lane reads.
template <class T, int D, class F>
__device__ inline void sum_tile_rows(uint32_t tile, int row, float share, const F& f) {
  const int t = 2 * (lane_of_thread() % 4);
  const float s0 = __shfl_sync(~0u, share, t), s1 = __shfl_sync(~0u, share, t + 1);
  const float s8 = __shfl_sync(~0u, share, t + 8), s9 = __shfl_sync(~0u, share, t + 9);
  const bool first = lane_of_thread() < 4;
  const uint32_t left[4] = {first ? pack(s0, s1, T()) : 0u, 0u, first ? pack(s8, s9, T()) : 0u, 0u};
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    float x[2][4] = {};
    by_rows<T, D>(x[0], x[1], left, tile, row, n);
    if (!first) continue;
    f(8 * n + t, make_float2(x[0][0], x[0][1]));
    f(8 * n + 8 + t, make_float2(x[1][0], x[1][1]));
  }
}

// Sums over coarse rows of a level, 2^level neighbouring rows (or columns) of a 16 x 16 matrix, at most all 16 of them.
// They are made one level after the other, and stay in the first row of the coarse row; the others hold what is left of
// levels before.
__device__ inline void add_row_pairs(float (&x)[2][4], int level) {
  each_of_tile([&](int half, int n, int i, int) {
    if (level < 4) {
      x[n][i] += __shfl_xor_sync(~0u, x[n][i], 2 << level);
    } else if (level == 4 && half == 0) {
      x[n][i] += x[n][i + 2];
    }
  });
}
__device__ inline void add_column_pairs(float (&x)[2][4], int level) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (level == 1) x[n][2 * half] += x[n][2 * half + 1];
      if (level == 2 || level == 3) x[n][2 * half] += __shfl_xor_sync(~0u, x[n][2 * half], level - 1);
    }
    if (level == 4) x[0][2 * half] += x[1][2 * half];
  }
}
__device__ inline bool leads_level(int row, int level) { return row % (1 << min(level, 4)) == 0; }

// The same for a number of every row.
__device__ inline void add_row_pairs(float (&x)[2], int level) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (level < 4) x[half] += __shfl_xor_sync(~0u, x[half], 2 << level);
  }
  if (level == 4) x[0] += x[1];
}

// The online softmax (online_softmax.cuh) of this lane's two rows of a tile; scores have natural base or base 2. The
// sums are those of this lane alone; quad_sum completes them.
template <bool kBase2 = false>
struct TileSoftmax {
  static constexpr float kFactor = kBase2 ? 1.0f : kLog2e;
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  __device__ void add(float (&s)[2][4], float (&rescale)[2]) {
    float new_max[2] = {max[0], max[1]};
    each_of_tile([&](int half, int n, int i, int) { new_max[half] = fmaxf(new_max[half], s[n][i]); });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      new_max[half] = quad_max(new_max[half]);
      rescale[half] = fast_exp2((max[half] - finite_or_zero(new_max[half])) * kFactor);
      sum[half] *= rescale[half];
      max[half] = new_max[half];
    }
    each_of_tile([&](int half, int n, int i, int) {
      s[n][i] = fast_exp2((s[n][i] - finite_or_zero(max[half])) * kFactor);
      sum[half] += s[n][i];
    });
  }
};

}  // namespace strata::cuda
