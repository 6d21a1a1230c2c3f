// One tile of queries in the backward pass: its packed operands, and P and dS against one tile of keys. Shared by the
// gradients of q, k, v and the weights (hkt_backward_cpu.cc) and by the gradient of the bias (hkt_bias_cpu.h).
#pragma once

#include "cpu/dropout_cpu.h"
#include "cpu/hkt_tile.h"

namespace strata::STRATA_ISA {

template <class T>
struct BackwardTile {
  BackwardTile(const HktProblem& p, Arena& arena)
      : score(p, arena),
        value_width(round_up(p.value_size, kLanes<T>)),
        dout_transposed(arena.take<T>(p.value_size * kTile)),
        dout(arena.take<T>(kTile * value_width)),
        lse(arena.take<T>(kTile)),
        row_term(arena.take<T>(kTile)),
        dscore(arena.take<T>(kTile * kTile)) {}

  ScoreTile<T> score;
  int64_t value_width;
  T* dout_transposed;   // (value_size, kTile); zero for queries that see no key
  T* dout;              // (kTile, value_width)
  T* lse;               // in units of log 2; +inf for queries that see no key, which makes their P zero
  T* row_term;          // D_i = <dO_i, o_i> - dlse_i
  T* dscore;            // (keys, kTile): dP, then dS
  bool finite_queries;  // no operand of the queries is infinite or NaN
};

// lse, in units of log 2, and D_i = <dO_i, o_i> - dlse_i of the queries of a tile; +inf and 0 for those that see no
// key, which makes their P zero. Returns whether all of them are finite.
template <class S, class T>
bool load_row_terms(const Head<S>& head, const HktOutputs& outputs, const HktGradients& g, int64_t i0, T* lse,
                    T* row_term) {
  const Rows<const S> dout = rows_of<S>(g.dout, head.b, head.h);
  const Rows<S> out = rows_of<S>(outputs.out, head.b, head.h);
  const int64_t row = head.line + i0, count = head.queries(i0);
  const T* given = static_cast<const T*>(outputs.lse) + row;
  const T* dlse = g.dlse == nullptr ? nullptr : static_cast<const T*>(g.dlse) + row;
  bool finite = true;
  for (int64_t i = 0; i < kTile; ++i) {
    lse[i] = kInfinity<T>;
    row_term[i] = 0;
    if (i >= count || given[i] == -kInfinity<T>) continue;
    T dot = 0;
    for (int64_t c = 0; c < head.p.value_size; ++c) dot += widen(dout.at(i0 + i, c)) * widen(out.at(i0 + i, c));
    lse[i] = given[i] * kLog2E<T>;
    row_term[i] = dlse == nullptr ? dot : dot - dlse[i];
    finite &= (lse[i] - row_term[i]) * T(0) == T(0);
  }
  return finite;
}

template <class S, class T>
void pack_backward(const Head<S>& head, const HktOutputs& outputs, const HktGradients& g, int64_t b, int64_t h,
                   int64_t i0, BackwardTile<T>& tile) {
  const HktProblem& p = head.p;
  const int64_t count = head.queries(i0);
  const Rows<const S> dout = rows_of<S>(g.dout, b, h);
  const T* lse = static_cast<const T*>(outputs.lse) + head.line + i0;

  pack_queries(head, i0, tile.score);
  pack_transposed<S, T>(dout, i0, count, p.value_size, T(1), tile.dout_transposed, kTile);
  pack_rows<S, T>(dout, i0, count, p.value_size, T(1), tile.dout, kTile, tile.value_width);
  tile.finite_queries = load_row_terms(head, outputs, g, i0, tile.lse, tile.row_term);
  for (int64_t i = 0; i < count; ++i) {
    if (lse[i] != -kInfinity<T>) continue;
    for (int64_t c = 0; c < p.value_size; ++c) {
      tile.dout_transposed[c * kTile + i] = 0;
      tile.dout[i * tile.value_width + c] = 0;
    }
  }
  tile.finite_queries &= !any_non_finite<T>({tile.dout, tile.value_width}, kTile, p.value_size);
  for (int l = 0; l < p.levels; ++l) {
    const int64_t lanes = level_lanes<T>(l);
    tile.finite_queries &= !any_non_finite<T>({tile.score.queries[l], lanes}, p.head_size, lanes);
  }
}

// P_ij = exp(S_ij - lse_i) into score.scores[0] and dS = P * (V dO^T - D) into dscore, both (keys, kTile). With dropout
// the factors of the weights multiply V dO^T, and in the end P.
template <class S, class T>
void probability_and_dscore(const Head<S>& head, int64_t i0, int64_t j0, int64_t n, BackwardTile<T>& tile) {
  score_tile(head, i0, j0, n, tile.score);
  tile.score.careful |= head.is_masked(i0, j0, n) && !tile.finite_queries;
  if (tile.score.careful) note_allowed(tile.score.scores[0], n, tile.score.allowed);

  const GemmOperand<T> values{tile.score.values.data, tile.score.values.step};
  gemm<T, Layout::kRowMajor>(values, {tile.dout_transposed, kTile}, tile.dscore, kTile, n, kTile / kLanes<T>,
                             head.p.value_size, StartZero<T>());
  T* probability = tile.score.scores[0];
  const DropoutTile<T> dropout(head.p.dropout, head.b, head.h);
  if (dropout.active()) {
    dropout.template each_key<kTile>(i0, j0, n, [&](int64_t j, const T* factors) {
      for (int64_t x = 0; x < kTile; ++x) tile.dscore[j * kTile + x] *= factors[x];
    });
  }
  for (int64_t x = 0; x < kTile; x += kLanes<T>) {
    const Vec<T> lse = load(tile.lse + x);
    const Vec<T> row_term = load(tile.row_term + x);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = j * kTile + x;
      const Vec<T> P = exp2<T>(load(probability + at) - lse);
      store(probability + at, P);
      store(tile.dscore + at, P * (load(tile.dscore + at) - row_term));
    }
  }
  if (tile.score.careful) {
    for (int64_t at = 0; at < n * kTile; ++at) {
      if (tile.score.allowed[at] == 0) tile.dscore[at] = 0;
    }
  }
  if (dropout.active()) {
    dropout.template each_key<kTile>(i0, j0, n, [&](int64_t j, const T* factors) {
      for (int64_t x = 0; x < kTile; ++x) probability[j * kTile + x] *= factors[x];
    });
  }
}

}  // namespace strata::STRATA_ISA
