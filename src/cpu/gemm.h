// Small matrix products on tiles that sit in the cache:  C[r][:] = init + sum_k A(r, k) * B[k][:]
//
// Rows of B and C are whole vectors; A is read one number at a time and broadcast, so it needs no packing and no
// padding. A register block of kRows x kVectors accumulators holds the whole sum.
#pragma once

#include "cpu/simd.h"

namespace strata::STRATA_ISA {

// How A(r, k) lies in memory: a[r * step + k] or a[k * step + r].
enum class Layout { kRowMajor, kTransposed };

template <class T>
struct GemmOperand {
  const T* data;
  int64_t step;
};

// Where the accumulators start. Each policy returns the vector for row r and column vector v of C.
template <class T>
struct StartZero {
  Vec<T> operator()(int64_t, int64_t) const { return Vec<T>{}; }
};
template <class T>
struct StartFrom {  // C += A B
  const T* c;
  int64_t step;
  Vec<T> operator()(int64_t r, int64_t v) const { return load(c + r * step + v * kLanes<T>); }
};
template <class T>
struct StartScaled {  // C = C * factor (per column) + A B
  const T* c;
  int64_t step;
  const T* factor;
  Vec<T> operator()(int64_t r, int64_t v) const {
    return load(c + r * step + v * kLanes<T>) * load(factor + v * kLanes<T>);
  }
};
template <class T>
struct StartRowScaled {  // C = C * factor (per row) + A B
  const T* c;
  int64_t step;
  const T* factor;
  Vec<T> operator()(int64_t r, int64_t v) const { return load(c + r * step + v * kLanes<T>) * factor[r]; }
};
template <class T>
struct StartUpsampled {  // every number of the coarse tile is repeated twice in both directions
  const T* coarse;
  int64_t step;
  Vec<T> operator()(int64_t r, int64_t v) const {
    return duplicate_lanes<T>(load(coarse + (r >> 1) * step + (v >> 1) * kLanes<T>), (v & 1) != 0);
  }
};

template <class T, int kRows, int kVectors, Layout kLayout, class Start>
inline void gemm_block(GemmOperand<T> a, GemmOperand<T> b, T* c, int64_t c_step, int64_t r0, int64_t v0, int64_t depth,
                       const Start& start) {
  Vec<T> acc[kRows][kVectors];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = start(r0 + r, v0 + v);
  }
  const T* a_at = a.data + (kLayout == Layout::kRowMajor ? r0 * a.step : r0);
  const T* b_at = b.data + v0 * kLanes<T>;
  for (int64_t k = 0; k < depth; ++k) {
    Vec<T> b_row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) b_row[v] = load(b_at + k * b.step + v * kLanes<T>);
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
      const T a_rk = kLayout == Layout::kRowMajor ? a_at[r * a.step + k] : a_at[k * a.step + r];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] += a_rk * b_row[v];
    }
  }
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c + (r0 + r) * c_step + (v0 + v) * kLanes<T>, acc[r][v]);
  }
}

// All rows of one column panel: as many full register blocks as fit, then smaller ones.
template <class T, int kRows, int kVectors, Layout kLayout, class Start>
inline void gemm_panel(GemmOperand<T> a, GemmOperand<T> b, T* c, int64_t c_step, int64_t rows, int64_t v0,
                       int64_t depth, const Start& start) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) gemm_block<T, kRows, kVectors, kLayout>(a, b, c, c_step, r, v0, depth, start);
  if (rows - r >= 4) {
    gemm_block<T, 4, kVectors, kLayout>(a, b, c, c_step, r, v0, depth, start);
    r += 4;
  }
  if (rows - r >= 2) {
    gemm_block<T, 2, kVectors, kLayout>(a, b, c, c_step, r, v0, depth, start);
    r += 2;
  }
  if (rows > r) gemm_block<T, 1, kVectors, kLayout>(a, b, c, c_step, r, v0, depth, start);
}

// C (rows x vectors * kLanes) = start + A (rows x depth) B (depth x vectors * kLanes).
template <class T, Layout kLayout, class Start>
inline void gemm(GemmOperand<T> a, GemmOperand<T> b, T* c, int64_t c_step, int64_t rows, int64_t vectors, int64_t depth,
                 const Start& start) {
  int64_t v = 0;
  if constexpr (kVectorRegisters >= 32) {
    for (; v + 4 <= vectors; v += 4) gemm_panel<T, 6, 4, kLayout>(a, b, c, c_step, rows, v, depth, start);
  }
  for (; v + 2 <= vectors; v += 2) {
    constexpr int kRows = kVectorRegisters >= 32 ? 8 : 6;
    gemm_panel<T, kRows, 2, kLayout>(a, b, c, c_step, rows, v, depth, start);
  }
  if (v < vectors) gemm_panel<T, 8, 1, kLayout>(a, b, c, c_step, rows, v, depth, start);
}

}  // namespace strata::STRATA_ISA
