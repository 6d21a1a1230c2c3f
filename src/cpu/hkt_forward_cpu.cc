// HKT forward: an online softmax over key tiles, one work item per tile of queries (docs/MATH.md, section 1.3).
#include "cpu/hkt_cpu_kernels.h"
#include "cpu/hkt_tile.h"
#include "cpu/parallel.h"
#include "cpu/softmax.h"

namespace strata::STRATA_ISA {
namespace {

template <class T>
struct ForwardSpace {
  ForwardSpace(const HktProblem& p, Arena& arena)
      : tile(p, arena),
        out(arena.take<T>(p.value_size * kTile)),
        peak(arena.take<T>(kTile)),
        sum(arena.take<T>(kTile)),
        factor(arena.take<T>(kTile)) {}

  ScoreTile<T> tile;
  T* out;     // (value_size, kTile): sum_j exp2(S_ij - peak_i) v_j
  T* peak;    // running maximum of the finished scores, in units of log 2
  T* sum;     // sum_j exp2(S_ij - peak_i)
  T* factor;  // exp2(old peak - new peak)
};

template <class T>
void accumulate(int64_t n, int64_t channels, ForwardSpace<T>& space) {
  if (space.tile.careful) {
    for (int64_t at = 0; at < channels * kTile; ++at) space.out[at] *= space.factor[at % kTile];
    careful_sum_over_keys(space.tile.values, space.tile.scores[0], space.tile.allowed, n, channels, kTile, space.out);
    return;
  }
  gemm<T, Layout::kTransposed>({space.tile.values.data, space.tile.values.step}, {space.tile.scores[0], kTile},
                               space.out, kTile, channels, kTile / kLanes<T>, n,
                               StartScaled<T>{space.out, kTile, space.factor});
}

template <class S>
void forward_item(const HktProblem& p, const HktOutputs& outputs, int64_t b, int64_t h, int64_t i0, void* memory) {
  using T = typename Compute<S>::Type;
  Arena arena(memory);
  ForwardSpace<T> space(p, arena);
  const Head<S> head(p, b, h);

  memset(space.out, 0, sizeof(T) * p.value_size * kTile);
  start_softmax(kTile, space.peak, space.sum);
  if (i0 < head.length) {
    pack_queries(head, i0, space.tile);
    const int64_t limit = head.key_limit(i0);
    for (int64_t j0 = 0; j0 < limit; j0 += kTile) {
      const int64_t n = min(kTile, limit - j0);
      score_tile(head, i0, j0, n, space.tile);
      if (space.tile.careful) note_allowed(space.tile, n);
      online_softmax(space.tile.scores[0], n, kTile, space.peak, space.sum, space.factor);
      accumulate(n, p.value_size, space);
    }
  }

  const Rows<S> out = rows_of<S>(outputs.out, b, h);
  T* lse = static_cast<T*>(outputs.lse) + (b * p.heads + h) * p.tokens;
  for (int64_t i = i0; i < min(p.tokens, i0 + kTile); ++i) {
    const T sum = space.sum[i - i0];
    const bool empty = i >= head.length || sum == T(0);
    const T scale = empty ? T(0) : T(1) / sum;
    lse[i] = empty ? -kInfinity<T> : softmax_lse(space.peak[i - i0], sum);
    for (int64_t c = 0; c < p.value_size; ++c) {
      narrow(empty ? T(0) : space.out[c * kTile + i - i0] * scale, &out.at(i, c));
    }
  }
}

template <class S>
bool forward(const HktProblem& p, const HktOutputs& outputs, int threads) {
  Arena measure(nullptr);
  ForwardSpace<typename Compute<S>::Type> sized(p, measure);
  const Workspace workspace(measure.used(), threads);
  if (!workspace.ok()) return false;
  const int64_t tiles = (p.tokens + kTile - 1) / kTile;
  parallel_items(p.batch * p.heads * tiles, threads, [&](int64_t item, int thread) {
    // The longest causal rows come first, so that the last items are short and threads finish together.
    const int64_t tile = tiles - 1 - item % tiles;
    const int64_t bh = item / tiles;
    forward_item<S>(p, outputs, bh / p.heads, bh % p.heads, tile * kTile, workspace.slice(thread));
  });
  return true;
}

}  // namespace

bool hkt_forward_cpu(const HktProblem& p, const HktOutputs& outputs, int threads) {
  return with_storage(p.dtype, [&](auto storage) { return forward<decltype(storage)>(p, outputs, threads); });
}

}  // namespace strata::STRATA_ISA
