// Weighted sums of rows, of which the means of nodes consist.
#pragma once

#include "cpu/hkt_tile.h"

namespace strata::STRATA_ISA {

// to += sum of shares[c] * rows[c], for kVectors vectors of each row. Whole rows are read one behind the other, which
// is how memory gives them fastest.
template <int kVectors, class T>
void add_weighted_vectors(DenseRows<T> rows, const T* shares, int64_t count, T* to) {
  Vec<T> sum[kVectors];
  for (int x = 0; x < kVectors; ++x) sum[x] = load(to + x * kLanes<T>);
  for (int64_t c = 0; c < count; ++c) {
    for (int x = 0; x < kVectors; ++x) sum[x] += load(rows.data + c * rows.step + x * kLanes<T>) * shares[c];
  }
  for (int x = 0; x < kVectors; ++x) store(to + x * kLanes<T>, sum[x]);
}
template <class T>
void add_weighted(DenseRows<T> rows, const T* shares, int64_t count, int64_t width, T* to) {
  constexpr int kMost = 4;
  int64_t x = 0;
  for (; x + kMost * kLanes<T> <= width; x += kMost * kLanes<T>)
    add_weighted_vectors<kMost>({rows.data + x, rows.step}, shares, count, to + x);
  for (; x < width; x += kLanes<T>) add_weighted_vectors<1>({rows.data + x, rows.step}, shares, count, to + x);
}

}  // namespace strata::STRATA_ISA
