// Products of bfloat16 numbers with float32 sums:  C[r][x] = start + sum_k A[r][k] B[k][x]
//
// A lies row by row, as in gemm.h. B lies in pairs along the sum, B[k / 2][x][k % 2]. AVX-512 BF16 and AMX read both of
// them so: a row of B is a vector of pairs, which meets a pair of A, broadcast (vdpbf16ps), or is a row of a tile
// (tdpbf16ps). The start of the sums is a policy of gemm.h. AMX needs a TileScope around it.
#pragma once

#include "cpu/gemm.h"
#include "cpu/pair_tiles.h"

namespace strata::STRATA_ISA {

struct PairOperand {
  const BFloat16* data;
  int64_t step;  // numbers from one row of A, or one row of pairs of B, to the next
};

// Columns come in multiples of kPairLanes. What is read of A and written of C are whole groups of kRowStep rows, and
// the sum has a multiple of kDepthStep terms; the caller has room for them, and zeros where they must not count.
constexpr int64_t kPairLanes = 16;

template <class Start>
inline constexpr bool kStartsAtZero = false;
template <>
inline constexpr bool kStartsAtZero<StartZero<float>> = true;
template <class Start>
inline constexpr bool kStartsFrom = false;
template <>
inline constexpr bool kStartsFrom<StartFrom<float>> = true;

#ifdef STRATA_TILES

constexpr int64_t kRowStep = kTileRows, kDepthStep = 32;

// Where the sums of a block of tiles start, in memory, from where tiles can load it.
template <class Start>
inline void write_start(float* c, int64_t c_step, int64_t r0, int64_t rows, int64_t x0, int64_t lanes,
                        const Start& start) {
  constexpr int64_t kN = kLanes<float>;
  if constexpr (kStartsFrom<Start>) {
    if (start.c == c) return;
  }
  for (int64_t r = r0; r < r0 + rows; ++r)
    for (int64_t x = x0; x < x0 + lanes; x += kN) store(c + r * c_step + x, start(r, x / kN));
}

// Tiles 0..3 are sums, 4 and 5 have rows of A, 6 and 7 columns of B.
template <int kRows, int kColumns, class Start>
inline void pair_block(PairOperand a, PairOperand b, float* c, int64_t c_step, int64_t r0, int64_t x0, int64_t depth,
                       const Start& start) {
  constexpr int64_t kC = sizeof(float), kP = sizeof(BFloat16);
  float* sums = c + r0 * c_step + x0;
  float* below = sums + kTileRows * c_step;
  if constexpr (kStartsAtZero<Start>) {
    Tiles::zero<0>();
    if constexpr (kColumns == 2) Tiles::zero<1>();
    if constexpr (kRows == 2) Tiles::zero<2>();
    if constexpr (kRows == 2 && kColumns == 2) Tiles::zero<3>();
  } else {
    write_start(c, c_step, r0, kRows * kTileRows, x0, kColumns * kPairLanes, start);
    Tiles::load<0>(sums, c_step * kC);
    if constexpr (kColumns == 2) Tiles::load<1>(sums + kPairLanes, c_step * kC);
    if constexpr (kRows == 2) Tiles::load<2>(below, c_step * kC);
    if constexpr (kRows == 2 && kColumns == 2) Tiles::load<3>(below + kPairLanes, c_step * kC);
  }
  const BFloat16* a_at = a.data + r0 * a.step;
  const BFloat16* b_at = b.data + 2 * x0;
  for (int64_t k = 0; k < depth; k += kDepthStep) {
    Tiles::load<4>(a_at + k, a.step * kP);
    Tiles::load<6>(b_at + k / 2 * b.step, b.step * kP);
    Tiles::multiply<0, 4, 6>();
    if constexpr (kColumns == 2) {
      Tiles::load<7>(b_at + k / 2 * b.step + 2 * kPairLanes, b.step * kP);
      Tiles::multiply<1, 4, 7>();
    }
    if constexpr (kRows == 2) {
      Tiles::load<5>(a_at + kTileRows * a.step + k, a.step * kP);
      Tiles::multiply<2, 5, 6>();
    }
    if constexpr (kRows == 2 && kColumns == 2) Tiles::multiply<3, 5, 7>();
  }
  Tiles::store<0>(sums, c_step * kC);
  if constexpr (kColumns == 2) Tiles::store<1>(sums + kPairLanes, c_step * kC);
  if constexpr (kRows == 2) Tiles::store<2>(below, c_step * kC);
  if constexpr (kRows == 2 && kColumns == 2) Tiles::store<3>(below + kPairLanes, c_step * kC);
}

// C (rows x lanes) = start + A (rows x depth) B (depth x lanes).
template <class Start>
inline void pair_gemm(PairOperand a, PairOperand b, float* c, int64_t c_step, int64_t rows, int64_t lanes,
                      int64_t depth, const Start& start) {
  for (int64_t r = 0; r < rows; r += 2 * kTileRows) {
    const bool two = r + kTileRows < rows;
    for (int64_t x = 0; x < lanes; x += 2 * kPairLanes) {
      const bool wide = x + kPairLanes < lanes;
      if (two && wide) pair_block<2, 2>(a, b, c, c_step, r, x, depth, start);
      if (two && !wide) pair_block<2, 1>(a, b, c, c_step, r, x, depth, start);
      if (!two && wide) pair_block<1, 2>(a, b, c, c_step, r, x, depth, start);
      if (!two && !wide) pair_block<1, 1>(a, b, c, c_step, r, x, depth, start);
    }
  }
}

#else

constexpr int64_t kRowStep = 1, kDepthStep = 2;

template <int kRows, int kVectors, class Start>
inline void pair_block(PairOperand a, PairOperand b, float* c, int64_t c_step, int64_t r0, int64_t v0, int64_t depth,
                       const Start& start) {
  static_assert(kLanes<float> == kPairLanes);
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = start(r0 + r, v0 + v);
  }
  const BFloat16* a_at = a.data + r0 * a.step;
  const BFloat16* b_at = b.data + v0 * 2 * kPairLanes;
  for (int64_t k = 0; k < depth; k += 2) {
    __m512bh b_row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      b_row[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b_at + k / 2 * b.step + v * 2 * kPairLanes));
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      memcpy(&pair, a_at + r * a.step + k, sizeof pair);
      const __m512bh a_rk = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], b_row[v], a_rk);
    }
  }
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + (r0 + r) * c_step + (v0 + v) * kPairLanes, sums[r][v]);
  }
}

template <int kRows, int kVectors, class Start>
inline void pair_panel(PairOperand a, PairOperand b, float* c, int64_t c_step, int64_t rows, int64_t v0, int64_t depth,
                       const Start& start) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) pair_block<kRows, kVectors>(a, b, c, c_step, r, v0, depth, start);
  if (rows - r >= 4) {
    pair_block<4, kVectors>(a, b, c, c_step, r, v0, depth, start);
    r += 4;
  }
  for (; r < rows; ++r) pair_block<1, kVectors>(a, b, c, c_step, r, v0, depth, start);
}

// C (rows x lanes) = start + A (rows x depth) B (depth x lanes).
template <class Start>
inline void pair_gemm(PairOperand a, PairOperand b, float* c, int64_t c_step, int64_t rows, int64_t lanes,
                      int64_t depth, const Start& start) {
  const int64_t vectors = lanes / kPairLanes;
  int64_t v = 0;
  for (; v + 4 <= vectors; v += 4) pair_panel<6, 4>(a, b, c, c_step, rows, v, depth, start);
  for (; v + 2 <= vectors; v += 2) pair_panel<8, 2>(a, b, c, c_step, rows, v, depth, start);
  if (v < vectors) pair_panel<8, 1>(a, b, c, c_step, rows, v, depth, start);
}

#endif

}  // namespace strata::STRATA_ISA
