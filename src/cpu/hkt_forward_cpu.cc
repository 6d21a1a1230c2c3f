// HKT forward: an online softmax over key tiles, one work item per tile of queries (docs/MATH.md, section 1.3).
#include "cpu/hkt_cpu_kernels.h"
#include "cpu/hkt_forward_tile.h"
#include "cpu/parallel.h"
#include "cpu/softmax.h"

namespace strata::STRATA_ISA {
namespace {

template <class T>
struct ForwardSpace {
  ForwardSpace(const HktProblem& p, Arena& arena) : tile(p, arena), rows(p.value_size, arena) {}

  ScoreTile<T> tile;
  OutputTile<T> rows;
};

template <class T>
void accumulate(int64_t n, int64_t channels, const ScoreTile<T>& tile, OutputTile<T>& rows) {
  if (tile.careful) {
    for (int64_t at = 0; at < channels * kTile; ++at) rows.out[at] *= rows.factor[at % kTile];
    careful_sum_over_keys(tile.values, tile.scores[0], tile.allowed, n, channels, kTile, rows.out);
    return;
  }
  gemm<T, Layout::kTransposed>({tile.values.data, tile.values.step}, {tile.scores[0], kTile}, rows.out, kTile, channels,
                               kTile / kLanes<T>, n, StartScaled<T>{rows.out, kTile, rows.factor});
}

template <class S>
void forward_item(const HktProblem& p, const HktOutputs& outputs, int64_t b, int64_t h, int64_t i0, void* memory) {
  using T = typename Compute<S>::Type;
  Arena arena(memory);
  ForwardSpace<T> space(p, arena);
  const Head<S> head(p, b, h);
  if (i0 >= head.rows) return;
  const DropoutTile<T> dropout(p.dropout, b, h);

  space.rows.start(p.value_size);
  if (i0 < head.length) {
    pack_queries(head, i0, space.tile);
    const HktRange keys = head.key_range(i0);
    for (int64_t j0 = keys.begin; j0 < keys.end; j0 += kTile) {
      const int64_t n = min(kTile, keys.end - j0);
      score_tile(head, i0, j0, n, space.tile);
      if (space.tile.careful) note_allowed(space.tile.scores[0], n, space.tile.allowed);
      online_softmax(space.tile.scores[0], n, kTile, space.rows.peak, space.rows.sum, space.rows.factor);
      if (dropout.active()) drop_weights(dropout, i0, j0, n, space.tile.scores[0]);
      accumulate(n, p.value_size, space.tile, space.rows);
    }
  }
  write_outputs(head, i0, outputs, space.rows);
}

template <class S>
bool forward(const HktProblem& p, const HktOutputs& outputs, int threads) {
  Arena measure(nullptr);
  ForwardSpace<typename Compute<S>::Type> sized(p, measure);
  const Workspace workspace(measure.used(), threads);
  if (!workspace.ok()) return false;
  const HktSide queries = query_side(p);
  const int64_t tiles = tile_count(queries, kTile);
  parallel_items(p.heads * tiles, threads, [&](int64_t item, int thread) {
    // The longest causal rows come first, so that the last items are short and threads finish together.
    // All tiles of a head come one after the other, so that its keys stay in the caches.
    const HktTile at = locate_tile(queries, tiles - 1 - item % tiles, kTile);
    forward_item<S>(p, outputs, at.sequence, item / tiles, at.tile * kTile, workspace.slice(thread));
  });
  return true;
}

}  // namespace

bool hkt_forward_cpu(const HktProblem& p, const HktOutputs& outputs, int threads) {
  return with_storage(p.dtype, [&](auto storage) { return forward<decltype(storage)>(p, outputs, threads); });
}

}  // namespace strata::STRATA_ISA
