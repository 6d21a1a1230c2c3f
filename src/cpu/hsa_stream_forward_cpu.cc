// Streaming attention, forward. First the means of all nodes; then tiles of kTile queries process the entries height by
// height, under one online softmax.
#include "cpu/hsa_stream_tile.h"
#include "cpu/parallel.h"

namespace strata::STRATA_ISA {
namespace {

// The entries of one height that a window sees: one more step of the online softmax.
template <class S, class T>
void forward_window(const StreamHead<S>& head, const Heights& heights, const StreamNodes<T>& nodes, int height,
                    const Window& window, StreamSpace<T>& space) {
  const int64_t x0 = window.x0, nq = window.nq, lanes = window.lanes, width = space.value_width;
  T* acc = space.acc + x0 * width;
  each_pair(head, heights, nodes, height, window, space, [&](const StreamPair<T>& pair) {
    stream_scores(head, heights, nodes, pair, space);
    online_softmax(space.scores[0], pair.count, lanes, space.peak + x0, space.sum + x0, space.factor + x0);
    if (head.p.dropout.probability > 0)
      each_dropout(head, pair, [&](int64_t at, T kept) { space.scores[0][at] *= kept; });
    const DenseRows<T> v = entry_values(head, heights, nodes, pair, space.v_rows);
    multiply_tiles<T, Layout::kTransposed>(space.products, {space.scores[0], lanes}, {v.data, v.step}, acc, width, nq,
                                           width / kLanes<T>, pair.count,
                                           StartRowScaled<T>{acc, width, space.factor + x0});
  });
}

template <class S, class T>
void forward_tile(const StreamHead<S>& head, const HsaStreamOutputs& outputs, const Heights& heights,
                  const StreamNodes<T>& nodes, int64_t i0, StreamSpace<T>& space) {
  const HsaStreamProblem& p = head.p;
  const int64_t nq = min(kTile, p.tokens - i0);
  load_queries(head, i0, nq, space);
  start_softmax(kTile, space.peak, space.sum);
  memset(space.acc, 0, sizeof(T) * kTile * space.value_width);
  for (int height = 0; height < heights.count; ++height) {
    each_window<T>(heights, height, i0, nq,
                   [&](const Window& window) { forward_window(head, heights, nodes, height, window, space); });
  }
  const Rows<S> out = rows_of<S>(outputs.out, head.b, head.head);
  T* lse = static_cast<T*>(outputs.lse) + stream_line(p, head.b, head.head) + i0;
  for (int64_t x = 0; x < nq; ++x) {
    lse[x] = softmax_lse(space.peak[x], space.sum[x]);
    const T inverse = space.sum[x] == T(0) ? T(0) : T(1) / space.sum[x];
    narrow_row(space.acc + x * space.value_width, inverse, p.value_size, out, i0 + x);
  }
}

template <class S>
bool forward(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, int threads) {
  using T = typename Compute<S>::Type;
  const Heights heights(p);
  Arena measure_nodes(nullptr), measure(nullptr);
  StreamNodes<T> sized_nodes(p, heights.total, false, measure_nodes);
  StreamSpace<T> sized(p, measure);
  const int64_t key_heads = p.batch * p.key_heads, group = p.heads / p.key_heads;
  const Workspace nodes_space(measure_nodes.used(), key_heads), workspace(measure.used(), threads);
  if (!nodes_space.ok() || !workspace.ok()) return false;
  auto nodes_of = [&](int64_t key_head) {
    Arena arena(nodes_space.slice(key_head));
    return StreamNodes<T>(p, heights.total, false, arena);
  };
  parallel_items(key_heads, threads, [&](int64_t key_head, int thread) {
    Arena arena(workspace.slice(thread));
    StreamSpace<T> space(p, arena);
    StreamNodes<T> nodes = nodes_of(key_head);
    const int64_t b = key_head / p.key_heads;
    const HsaStreamProblem own = of_sequence(p, b);
    make_nodes(StreamKeys<S>(own, b, key_head % p.key_heads), Heights(own), nodes, space.scratch);
  });
  const int64_t tiles = (p.tokens + kTile - 1) / kTile;
  parallel_items(p.batch * p.heads * tiles, threads, [&](int64_t item, int thread) {
    Arena arena(workspace.slice(thread));
    StreamSpace<T> space(p, arena);
    [[maybe_unused]] const ProductScope scope;
    const int64_t stream = item / tiles, b = stream / p.heads, i0 = item % tiles * kTile;
    const HsaStreamProblem own = of_sequence(p, b);
    if (i0 < own.tokens)
      forward_tile(StreamHead<S>(own, b, stream % p.heads), outputs, Heights(own), nodes_of(stream / group), i0, space);
  });
  return true;
}

}  // namespace

bool hsa_stream_forward_cpu(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, int threads) {
  return with_storage(p.dtype, [&](auto storage) { return forward<decltype(storage)>(p, outputs, threads); });
}

}  // namespace strata::STRATA_ISA
