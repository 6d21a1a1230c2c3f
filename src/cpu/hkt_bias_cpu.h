// The gradient of the bias, dbias = dS, summed over the batch and head axes that dbias broadcasts.
//
// This is a separate pass over tiles of queries: each item processes the (sequence, head) pairs that share a bias in a
// fixed order, so the sum is the same at any number of threads and needs no T x T buffer. The scores are computed a
// second time, but only if this gradient is requested.
#pragma once

#include "cpu/hkt_backward_tile.h"
#include "cpu/parallel.h"

namespace strata::STRATA_ISA {

template <class S>
void bias_gradient_item(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g, int64_t slice_b,
                        int64_t slice_h, int64_t i0, void* memory) {
  using T = typename Compute<S>::Type;
  Arena arena(memory);
  BackwardTile<T> tile(p, arena);
  T* sum = arena.take<T>(p.key_tokens * kTile);  // (keys, kTile)
  memset(sum, 0, sizeof(T) * p.key_tokens * kTile);

  const bool sum_batch = g.dbias.stride[0] == 0;
  const bool sum_heads = g.dbias.stride[1] == 0;
  for (int64_t b = sum_batch ? 0 : slice_b; b < (sum_batch ? p.batch : slice_b + 1); ++b) {
    for (int64_t h = sum_heads ? 0 : slice_h; h < (sum_heads ? p.heads : slice_h + 1); ++h) {
      const Head<S> head(p, b, h);
      if (i0 >= head.length) continue;
      pack_backward(head, outputs, g, b, h, i0, tile);
      const HktRange keys = head.key_range(i0);
      for (int64_t j0 = keys.begin; j0 < keys.end; j0 += kTile) {
        const int64_t n = min(kTile, keys.end - j0);
        probability_and_dscore(head, i0, j0, n, tile);
        for (int64_t at = 0; at < n * kTile; ++at) sum[j0 * kTile + at] += tile.dscore[at];
      }
    }
  }
  const Rows<S> dbias = rows_of<S>(g.dbias, slice_b, slice_h);
  for (int64_t i = i0; i < min(p.tokens, i0 + kTile); ++i)
    for (int64_t j = 0; j < p.key_tokens; ++j) narrow(sum[j * kTile + i - i0], &dbias.at(i, j));
}

template <class S>
bool bias_gradient(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g, int threads) {
  using T = typename Compute<S>::Type;
  Arena measure(nullptr);
  BackwardTile<T> sized(p, measure);
  measure.take<T>(p.key_tokens * kTile);
  const Workspace workspace(measure.used(), threads);
  if (!workspace.ok()) return false;
  const int64_t slices_b = g.dbias.stride[0] == 0 ? 1 : p.batch;
  const int64_t slices_h = g.dbias.stride[1] == 0 ? 1 : p.heads;
  const int64_t tiles = (p.tokens + kTile - 1) / kTile;
  parallel_items(slices_b * slices_h * tiles, threads, [&](int64_t item, int thread) {
    const int64_t slice = item / tiles;
    bias_gradient_item<S>(p, outputs, g, slice / slices_h, slice % slices_h, item % tiles * kTile,
                          workspace.slice(thread));
  });
  return true;
}

}  // namespace strata::STRATA_ISA
