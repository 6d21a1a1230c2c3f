// HKT forward: an online softmax over key tiles, one work item per tile of queries (docs/MATH.md, section 1.3).
#include "cpu/dropout_cpu.h"
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

// Rows i0 .. i0 + nq of the output: the tile's columns, (channels, kTile), divided by their sums; zeros where a query
// has seen no key. Whole blocks are transposed in registers where the channels lie side by side.
template <class S, class T>
void write_rows(const ForwardSpace<T>& space, const T* inverse, int64_t i0, int64_t nq, int64_t channels, Rows<S> out) {
  int64_t done = 0;  // channels
  if constexpr (sizeof(S) == sizeof(T)) {
    if (out.channel_stride == 1) done = channels / kLanes<T> * kLanes<T>;
    for (int64_t c0 = 0; c0 < done; c0 += kLanes<T>) {
      for (int64_t x0 = 0; x0 < nq; x0 += kLanes<T>) {
        Vec<T> block[kLanes<T>];
        for (int64_t c = 0; c < kLanes<T>; ++c) block[c] = load(space.out + (c0 + c) * kTile + x0);
        transpose<T>(block);
        for (int64_t x = 0; x < min(kLanes<T>, nq - x0); ++x)
          store(&out.at(i0 + x0 + x, c0), inverse[x0 + x] == T(0) ? Vec<T>{} : block[x] * inverse[x0 + x]);
      }
    }
  }
  for (int64_t x = 0; x < nq; ++x)
    for (int64_t c = done; c < channels; ++c)
      narrow(inverse[x] == T(0) ? T(0) : space.out[c * kTile + x] * inverse[x], &out.at(i0 + x, c));
}

// The weights of a tile, exp2(S - peak), without those that are dropped. Their sum is taken before.
template <class T>
void drop_weights(const DropoutTile<T>& dropout, int64_t i0, int64_t j0, int64_t n, T* weights) {
  dropout.template each_key<kTile>(i0, j0, n, [&](int64_t j, const T* factors) {
    for (int64_t x = 0; x < kTile; ++x) weights[j * kTile + x] *= factors[x];
  });
}

template <class S>
void forward_item(const HktProblem& p, const HktOutputs& outputs, int64_t b, int64_t h, int64_t i0, void* memory) {
  using T = typename Compute<S>::Type;
  Arena arena(memory);
  ForwardSpace<T> space(p, arena);
  const Head<S> head(p, b, h);
  if (i0 >= head.rows) return;
  const DropoutTile<T> dropout(p.dropout, b, h);

  memset(space.out, 0, sizeof(T) * p.value_size * kTile);
  start_softmax(kTile, space.peak, space.sum);
  if (i0 < head.length) {
    pack_queries(head, i0, space.tile);
    const HktRange keys = head.key_range(i0);
    for (int64_t j0 = keys.begin; j0 < keys.end; j0 += kTile) {
      const int64_t n = min(kTile, keys.end - j0);
      score_tile(head, i0, j0, n, space.tile);
      if (space.tile.careful) note_allowed(space.tile, n);
      online_softmax(space.tile.scores[0], n, kTile, space.peak, space.sum, space.factor);
      if (dropout.active()) drop_weights(dropout, i0, j0, n, space.tile.scores[0]);
      accumulate(n, p.value_size, space);
    }
  }

  const Rows<S> out = rows_of<S>(outputs.out, b, h);
  T* lse = static_cast<T*>(outputs.lse) + head.line;
  const int64_t nq = min(kTile, head.rows - i0);
  for (int64_t x = 0; x < nq; ++x) {
    const T sum = space.sum[x];
    const bool empty = i0 + x >= head.length || sum == T(0);
    lse[i0 + x] = empty ? -kInfinity<T> : softmax_lse(space.peak[x], sum);
    space.factor[x] = empty ? T(0) : T(1) / sum;
  }
  write_rows<S, T>(space, space.factor, i0, nq, p.value_size, out);
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
