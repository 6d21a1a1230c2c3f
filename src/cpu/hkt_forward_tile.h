// What the forward passes share: the running sums of one tile of queries, and how they become outputs.
#pragma once

#include "cpu/dropout_cpu.h"
#include "cpu/hkt_tile.h"
#include "cpu/softmax.h"

namespace strata::STRATA_ISA {

template <class T>
struct OutputTile {
  OutputTile(int64_t channels, Arena& arena)
      : out(arena.take<T>(channels * kTile)),
        peak(arena.take<T>(kTile)),
        sum(arena.take<T>(kTile)),
        factor(arena.take<T>(kTile)) {}

  void start(int64_t channels) {
    memset(out, 0, sizeof(T) * channels * kTile);
    start_softmax(kTile, peak, sum);
  }

  T* out;     // (channels, kTile): sum_j exp2(S_ij - peak_i) v_j
  T* peak;    // running maximum of the finished scores, in units of log 2
  T* sum;     // sum_j exp2(S_ij - peak_i)
  T* factor;  // exp2(old peak - new peak)
};

// The weights of a tile, exp2(S - peak), without those that are dropped. Their sum is taken before.
template <class T>
void drop_weights(const DropoutTile<T>& dropout, int64_t i0, int64_t j0, int64_t n, T* weights) {
  dropout.template each_key<kTile>(i0, j0, n, [&](int64_t j, const T* factors) {
    for (int64_t x = 0; x < kTile; ++x) weights[j * kTile + x] *= factors[x];
  });
}

// Rows i0 .. i0 + nq of the output: the tile's columns, (channels, kTile), divided by their sums; zeros where a query
// has seen no key. Whole blocks are transposed in registers where the channels lie side by side.
template <class S, class T>
void write_rows(const T* tile, const T* inverse, int64_t i0, int64_t nq, int64_t channels, Rows<S> out) {
  const int64_t done = out.channel_stride == 1 ? channels / kLanes<T> * kLanes<T> : 0;
  for (int64_t c0 = 0; c0 < done; c0 += kLanes<T>) {
    for (int64_t x0 = 0; x0 < nq; x0 += kLanes<T>) {
      Vec<T> block[kLanes<T>];
      for (int64_t c = 0; c < kLanes<T>; ++c) block[c] = load(tile + (c0 + c) * kTile + x0);
      transpose<T>(block);
      for (int64_t x = 0; x < min(kLanes<T>, nq - x0); ++x)
        store_narrow(&out.at(i0 + x0 + x, c0), inverse[x0 + x] == T(0) ? Vec<T>{} : block[x] * inverse[x0 + x]);
    }
  }
  for (int64_t x = 0; x < nq; ++x)
    for (int64_t c = done; c < channels; ++c)
      narrow(inverse[x] == T(0) ? T(0) : tile[c * kTile + x] * inverse[x], &out.at(i0 + x, c));
}

// out and lse of the rows from i0 on, padding included.
template <class S, class T>
void write_outputs(const Head<S>& head, int64_t i0, const HktOutputs& outputs, OutputTile<T>& rows) {
  T* lse = static_cast<T*>(outputs.lse) + head.line;
  const int64_t nq = min(kTile, head.rows - i0);
  for (int64_t x = 0; x < nq; ++x) {
    const T sum = rows.sum[x];
    const bool empty = i0 + x >= head.length || sum == T(0);
    lse[i0 + x] = empty ? -kInfinity<T> : softmax_lse(rows.peak[x], sum);
    rows.factor[x] = empty ? T(0) : T(1) / sum;
  }
  write_rows<S, T>(rows.out, rows.factor, i0, nq, head.p.value_size, rows_of<S>(outputs.out, head.b, head.h));
}

}  // namespace strata::STRATA_ISA
