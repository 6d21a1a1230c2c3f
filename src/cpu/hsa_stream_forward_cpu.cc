// Streaming HSA, forward and backward (docs/MATH.md, section 2.5). First the means of all complete nodes; then tiles of
// kTile queries process the entries height by height, under one online softmax. At height h, query i sees the nodes
// from the first sibling of its ancestor up to, not including, that ancestor. Where a family covers fewer queries than
// a tile, the tile is processed window by window, so that few entries are computed that no query sees; a mask hides
// these.
#include "cpu/hsa_cpu_kernels.h"
#include "cpu/hsa_family.h"
#include "cpu/parallel.h"

namespace strata::STRATA_ISA {
namespace {

constexpr int kMaxHeights = 32;

// Complete nodes of every height above the leaves, one after the other.
struct Heights {
  Heights(int64_t tokens, int64_t b) {
    size[0] = 1;
    offset[0] = 0;
    while (tokens / (size[count - 1] * b) > 0) {
      size[count] = size[count - 1] * b;
      offset[count] = total;
      total += tokens / size[count];
      ++count;
    }
  }
  int count = 1;  // heights with nodes, leaves included
  int64_t size[kMaxHeights];
  int64_t offset[kMaxHeights];  // of a height's first node among all inner nodes
  int64_t total = 0;
};

template <class T>
struct StreamNodes {
  StreamNodes(const HsaStreamProblem& p, int64_t nodes, bool gradients, Arena& arena)
      : key_width(round_up(p.head_size, kLanes<T>)), value_width(round_up(p.value_size, kLanes<T>)) {
    mass = arena.take<T>(nodes);
    kappa = arena.take<T>(nodes);
    k = arena.take<T>(nodes * key_width);
    v = arena.take<T>(nodes * value_width);
    dk = arena.take<T>(gradients ? nodes * key_width : 0);
    dv = arena.take<T>(gradients ? nodes * value_width : 0);
    dkappa = arena.take<T>(gradients ? nodes : 0);
    dmass = arena.take<T>(gradients && p.weights.data != nullptr ? nodes : 0);
  }
  int64_t key_width, value_width;
  T *mass, *kappa, *k, *v, *dk, *dv, *dkappa, *dmass;
};

template <class S>
struct StreamHead {
  using T = typename Compute<S>::Type;
  StreamHead(const HsaStreamProblem& problem, int64_t b_, int64_t h_) : p(problem), b(b_), h(h_) {
    q = rows_of<S>(p.q, b, h);
    k = rows_of<S>(p.k, b, h);
    v = rows_of<S>(p.v, b, h);
    if (p.weights.data != nullptr) weights = rows_of<T>(p.weights, b, 0);
    if (p.key_bias.data != nullptr) kappa = rows_of<T>(p.key_bias, b, h);
    const int64_t table = p.heights * p.branching * p.branching;
    if (p.positions != nullptr) positions = static_cast<const T*>(p.positions) + h * table;
  }
  T weight_of(int64_t t) const { return weights.data == nullptr ? T(1) : weights.at(t, 0); }
  T kappa_of(int64_t t) const { return kappa.data == nullptr ? T(0) : kappa.at(t, 0); }

  const HsaStreamProblem& p;
  int64_t b, h;
  Rows<const S> q, k, v;
  Rows<const T> weights{}, kappa{};
  const T* positions = nullptr;
};

// Rows first .. first + count of a height, dense and padded to whole vectors.
template <class S, class T>
DenseRows<T> entry_rows(Rows<const S> leaf, const T* node, const Heights& heights, int height, int64_t first,
                        int64_t count, int64_t width, int64_t channels, const StreamHead<S>& head, T* scratch) {
  if (height > 0) return {node + (heights.offset[height] + first) * width, width};
  if constexpr (sizeof(S) == sizeof(T)) {
    if (leaf.channel_stride == 1 && channels == width && head.weights.data == nullptr) {
      return {&leaf.at(first, 0), leaf.token_stride};
    }
  }
  for (int64_t n = 0; n < count; ++n) {
    const bool real = head.weight_of(first + n) != T(0);
    pack_rows<S, T>(leaf, first + n, real ? 1 : 0, channels, T(1), scratch + n * width, 1, width);
  }
  return {scratch, width};
}

template <class S, class T>
void make_nodes(const StreamHead<S>& head, const Heights& heights, StreamNodes<T>& nodes, T* scratch) {
  const int64_t b = head.p.branching;
  for (int height = 1; height < heights.count; ++height) {
    for (int64_t n = 0; n < head.p.tokens / heights.size[height]; ++n) {
      const int64_t at = heights.offset[height] + n;
      T mass = 0, kappa = 0, share[kMaxBranching];
      for (int64_t c = 0; c < b; ++c) {
        const int64_t child = n * b + c;
        share[c] = height == 1 ? head.weight_of(child) : nodes.mass[heights.offset[height - 1] + child];
        mass += share[c];
      }
      for (int64_t c = 0; c < b; ++c) {
        const int64_t child = n * b + c;
        share[c] = mass > T(0) ? share[c] / mass : T(0);
        if (share[c] > T(0))
          kappa += share[c] * (height == 1 ? head.kappa_of(child) : nodes.kappa[heights.offset[height - 1] + child]);
      }
      nodes.mass[at] = mass;
      nodes.kappa[at] = kappa;
      for (bool keys : {true, false}) {
        const int64_t width = keys ? nodes.key_width : nodes.value_width;
        T* mean = (keys ? nodes.k : nodes.v) + at * width;
        const DenseRows<T> rows =
            entry_rows<S, T>(keys ? head.k : head.v, keys ? nodes.k : nodes.v, heights, height - 1, n * b, b, width,
                             keys ? head.p.head_size : head.p.value_size, head, scratch);
        for (int64_t x = 0; x < width; x += kLanes<T>) {
          Vec<T> sum{};
          for (int64_t c = 0; c < b; ++c) sum += load(rows.data + c * rows.step + x) * share[c];
          store(mean + x, sum);
        }
      }
    }
  }
}

// Entries of one height that some query of the tile i0 .. i0 + nq sees: nodes first .. end.
struct Span {
  int64_t first, end;
};
Span entries_of(const Heights& heights, int64_t b, int height, int64_t i0, int64_t nq) {
  const int64_t size = heights.size[height];
  const int64_t last = (i0 + nq - 1) / size;
  return {i0 / size / b * b, height == 0 ? last + 1 : last};  // leaves see themselves
}

// Some queries of a tile: x0 .. x0 + nq, in `lanes` lanes; the first of them is token i0.
struct Window {
  int64_t x0, i0, nq, lanes;
};

// Calls body(window) for the windows of a tile of nq queries from token i0 on. A window is as wide as a family of this
// height, in whole vectors.
template <class T, class Body>
void each_window(const Heights& heights, int64_t b, int height, int64_t i0, int64_t nq, const Body& body) {
  const int64_t width = heights.size[height] < kTile ? round_up(b * heights.size[height], kLanes<T>) : kTile;
  for (int64_t x0 = 0; x0 < nq; x0 += width) body(Window{x0, i0 + x0, min(width, nq - x0), min(width, kTile - x0)});
}

// Scores of the entries first .. first + nk of a height; -inf outside of what each query sees.
template <class S, class T>
void stream_scores(const StreamHead<S>& head, const Heights& heights, const StreamNodes<T>& nodes, int height,
                   const Window& window, int64_t first, int64_t nk, DenseRows<T> keys, FamilyTile<T>& tile) {
  const int64_t b = head.p.branching, size = heights.size[height];
  const auto [x0, i0, nq, lanes] = window;
  gemm<T, Layout::kRowMajor>({keys.data, keys.step}, {tile.queries + x0, kTile}, tile.scores, lanes, nk,
                             lanes / kLanes<T>, head.p.head_size, StartZero<T>());
  const bool positioned = head.positions != nullptr && height < head.p.heights;
  for (int64_t y = 0; y < nk; ++y) {
    const int64_t n = first + y;
    T* row = tile.scores + y * lanes;
    const T mass = height == 0 ? head.weight_of(n) : nodes.mass[heights.offset[height] + n];
    const T kappa = height == 0 ? head.kappa_of(n) : nodes.kappa[heights.offset[height] + n];
    const T term = mass == T(0) ? -kInfinity<T> : (natural_log(mass) + kappa) * kLog2E<T>;
    // The queries below the later siblings of n, in its family.
    const int64_t family_end = (n / b + 1) * b;
    const int64_t begin = max(0, min(nq, (n + (height == 0 ? 0 : 1)) * size - i0));
    const int64_t end = max(begin, min(nq, family_end * size - i0));
    for (int64_t x = 0; x < begin; ++x) row[x] = -kInfinity<T>;
    for (int64_t x = begin; x < end; ++x) row[x] += term;
    for (int64_t x = end; x < lanes; ++x) row[x] = -kInfinity<T>;
    if (!positioned) continue;
    const T* table = head.positions + height * b * b;
    for (int64_t x = begin; x < end; ++x) {
      const int64_t node = (i0 + x) / size;
      if (node != n) row[x] += kLog2E<T> * table[node % b * b + n % b];
    }
  }
}

template <class T>
struct StreamSpace {
  StreamSpace(const HsaStreamProblem& p, Arena& arena)
      : shim{make_shim(p)},
        tile(shim, arena),
        acc(arena.take<T>(kTile * tile.value_width)),
        dout_rows(arena.take<T>(kTile * tile.value_width)),
        dout_transposed(arena.take<T>(p.value_size * kTile)),
        product(arena.take<T>(kTile * kTile)),
        gradient(arena.take<T>(kTile * max(tile.key_width, tile.value_width))),
        dq(arena.take<T>(kTile * tile.key_width)),
        row_lse(arena.take<T>(kTile)),
        row_term(arena.take<T>(kTile)),
        scratch(arena.take<T>(kTile * max(tile.key_width, tile.value_width))) {}

  static HsaProblem make_shim(const HsaStreamProblem& p) {
    HsaProblem shim;
    shim.head_size = p.head_size;
    shim.value_size = p.value_size;
    return shim;
  }
  HsaProblem shim;  // sizes, for the shared tile
  FamilyTile<T> tile;
  T *acc, *dout_rows, *dout_transposed, *product, *gradient, *dq, *row_lse, *row_term, *scratch;
};

// Row t of `to` = factor * from, channel by channel; with whole vectors where the channels lie side by side.
template <class S, class T>
void narrow_row(const T* from, T factor, int64_t channels, Rows<S> to, int64_t t) {
  S* row = &to.at(t, 0);
  if (to.channel_stride == 1) {
    for (int64_t c = 0; c < channels; ++c) narrow(factor * from[c], row + c);
  } else {
    for (int64_t c = 0; c < channels; ++c) narrow(factor * from[c], row + c * to.channel_stride);
  }
}

template <class S, class T>
DenseRows<T> load_queries(const StreamHead<S>& head, int64_t i0, int64_t nq, StreamSpace<T>& space) {
  pack_rows<S, T>(head.q, i0, nq, head.p.head_size, T(1), space.tile.q_rows, kTile, space.tile.key_width);
  const DenseRows<T> rows{space.tile.q_rows, space.tile.key_width};
  transpose_rows<T>(rows, nq, head.p.head_size, static_cast<T>(head.p.scale) * kLog2E<T>, space.tile.queries, kTile);
  return rows;
}

// The entries of one height that a window sees: one more step of the online softmax.
template <class S, class T>
void forward_window(const StreamHead<S>& head, const Heights& heights, const StreamNodes<T>& nodes, int height,
                    const Window& window, StreamSpace<T>& space) {
  const HsaStreamProblem& p = head.p;
  FamilyTile<T>& tile = space.tile;
  const auto [x0, i0, nq, lanes] = window;
  const Span span = entries_of(heights, p.branching, height, i0, nq);
  T* acc = space.acc + x0 * tile.value_width;
  for (int64_t first = span.first; first < span.end; first += kTile) {
    const int64_t nk = min(kTile, span.end - first);
    const DenseRows<T> k =
        entry_rows<S, T>(head.k, nodes.k, heights, height, first, nk, tile.key_width, p.head_size, head, tile.k_rows);
    stream_scores(head, heights, nodes, height, window, first, nk, k, tile);
    online_softmax(tile.scores, nk, lanes, tile.peak + x0, tile.sum + x0, tile.factor + x0);
    const DenseRows<T> v = entry_rows<S, T>(head.v, nodes.v, heights, height, first, nk, tile.value_width, p.value_size,
                                            head, tile.v_rows);
    gemm<T, Layout::kTransposed>({tile.scores, lanes}, {v.data, v.step}, acc, tile.value_width, nq,
                                 tile.value_width / kLanes<T>, nk,
                                 StartRowScaled<T>{acc, tile.value_width, tile.factor + x0});
  }
}

template <class S, class T>
void forward_tile(const StreamHead<S>& head, const HsaStreamOutputs& outputs, const Heights& heights,
                  const StreamNodes<T>& nodes, int64_t i0, StreamSpace<T>& space) {
  const HsaStreamProblem& p = head.p;
  FamilyTile<T>& tile = space.tile;
  const int64_t nq = min(kTile, p.tokens - i0);
  load_queries(head, i0, nq, space);
  start_softmax(kTile, tile.peak, tile.sum);
  memset(space.acc, 0, sizeof(T) * kTile * tile.value_width);
  for (int height = 0; height < heights.count; ++height) {
    each_window<T>(heights, p.branching, height, i0, nq,
                   [&](const Window& window) { forward_window(head, heights, nodes, height, window, space); });
  }
  const Rows<S> out = rows_of<S>(outputs.out, head.b, head.h);
  T* lse = static_cast<T*>(outputs.lse) + (head.b * p.heads + head.h) * p.tokens + i0;
  for (int64_t x = 0; x < nq; ++x) {
    lse[x] = softmax_lse(tile.peak[x], tile.sum[x]);
    const T inverse = tile.sum[x] == T(0) ? T(0) : T(1) / tile.sum[x];
    narrow_row(space.acc + x * tile.value_width, inverse, p.value_size, out, i0 + x);
  }
}

template <class S>
bool forward(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, int threads) {
  using T = typename Compute<S>::Type;
  const Heights heights(p.tokens, p.branching);
  Arena measure_nodes(nullptr), measure(nullptr);
  StreamNodes<T> sized_nodes(p, heights.total, false, measure_nodes);
  StreamSpace<T> sized(p, measure);
  const int64_t streams = p.batch * p.heads;
  const Workspace nodes_space(measure_nodes.used(), streams), workspace(measure.used(), threads);
  if (!nodes_space.ok() || !workspace.ok()) return false;
  auto nodes_of = [&](int64_t stream) {
    Arena arena(nodes_space.slice(stream));
    return StreamNodes<T>(p, heights.total, false, arena);
  };
  parallel_items(streams, threads, [&](int64_t stream, int thread) {
    Arena arena(workspace.slice(thread));
    StreamSpace<T> space(p, arena);
    StreamNodes<T> nodes = nodes_of(stream);
    make_nodes(StreamHead<S>(p, stream / p.heads, stream % p.heads), heights, nodes, space.scratch);
  });
  const int64_t tiles = (p.tokens + kTile - 1) / kTile;
  parallel_items(streams * tiles, threads, [&](int64_t item, int thread) {
    Arena arena(workspace.slice(thread));
    StreamSpace<T> space(p, arena);
    const int64_t stream = item / tiles;
    forward_tile(StreamHead<S>(p, stream / p.heads, stream % p.heads), outputs, heights, nodes_of(stream),
                 item % tiles * kTile, space);
  });
  return true;
}

// Gradients of one stream: every tile adds to the nodes and leaves of its own stream, in order.
template <class S>
struct StreamBackward {
  using T = typename Compute<S>::Type;
  const StreamHead<S>& head;
  const HsaStreamOutputs& outputs;
  const HsaStreamGradients& g;
  const Heights& heights;
  StreamNodes<T>& nodes;
  StreamSpace<T>& space;
  T *leaf_dk, *leaf_dv, *leaf_dkappa, *leaf_dmass;  // (tokens, key_width), (tokens, value_width), (tokens)
  T* dpositions;                                    // of this stream, or null

  void run() {
    const HsaStreamProblem& p = head.p;
    make_nodes(head, heights, nodes, space.scratch);
    memset(nodes.dk, 0, sizeof(T) * heights.total * nodes.key_width);
    memset(nodes.dv, 0, sizeof(T) * heights.total * nodes.value_width);
    memset(nodes.dkappa, 0, sizeof(T) * heights.total);
    memset(leaf_dk, 0, sizeof(T) * p.tokens * nodes.key_width);
    memset(leaf_dv, 0, sizeof(T) * p.tokens * nodes.value_width);
    memset(leaf_dkappa, 0, sizeof(T) * p.tokens);
    for (int64_t i0 = 0; i0 < p.tokens; i0 += kTile) tile(i0);
    if (g.dweights.data != nullptr) start_masses();
    push_down();
    const Rows<S> dk = rows_of<S>(g.dk, head.b, head.h), dv = rows_of<S>(g.dv, head.b, head.h);
    for (int64_t t = 0; t < p.tokens; ++t) {
      narrow_row(leaf_dk + t * nodes.key_width, T(1), p.head_size, dk, t);
      narrow_row(leaf_dv + t * nodes.value_width, T(1), p.value_size, dv, t);
    }
    if (g.dkey_bias.data != nullptr) {
      const Rows<T> to = rows_of<T>(g.dkey_bias, head.b, head.h);
      for (int64_t t = 0; t < p.tokens; ++t) to.at(t, 0) = leaf_dkappa[t];
    }
    if (g.dweights.data != nullptr) {
      const Rows<T> to = rows_of<T>(g.dweights, head.b, head.h);
      for (int64_t t = 0; t < p.tokens; ++t) to.at(t, 0) = head.weight_of(t) > T(0) ? leaf_dmass[t] : T(0);
    }
  }

  void tile(int64_t i0) {
    const HsaStreamProblem& p = head.p;
    FamilyTile<T>& t = space.tile;
    const int64_t nq = min(kTile, p.tokens - i0), kw = t.key_width, vw = t.value_width;
    const DenseRows<T> q = load_queries(head, i0, nq, space);
    const Rows<const S> dout = rows_of<S>(g.dout, head.b, head.h);
    const Rows<S> out = rows_of<S>(outputs.out, head.b, head.h);
    pack_rows<S, T>(dout, i0, nq, p.value_size, T(1), space.dout_rows, kTile, vw);
    const int64_t row0 = (head.b * p.heads + head.h) * p.tokens + i0;
    for (int64_t x = 0; x < kTile; ++x) {
      const T lse = x < nq ? static_cast<const T*>(outputs.lse)[row0 + x] : -kInfinity<T>;
      const bool empty = lse == -kInfinity<T>;
      T dot = 0;
      for (int64_t c = 0; c < p.value_size && !empty; ++c)
        dot += space.dout_rows[x * vw + c] * widen(out.at(i0 + x, c));
      if (empty) memset(space.dout_rows + x * vw, 0, sizeof(T) * vw);
      space.row_lse[x] = empty ? kInfinity<T> : lse * kLog2E<T>;
      space.row_term[x] = empty || g.dlse == nullptr ? dot : dot - static_cast<const T*>(g.dlse)[row0 + x];
    }
    transpose_rows<T>({space.dout_rows, vw}, nq, p.value_size, T(1), space.dout_transposed, kTile);
    memset(space.dq, 0, sizeof(T) * kTile * kw);
    for (int height = 0; height < heights.count; ++height) {
      each_window<T>(heights, p.branching, height, i0, nq, [&](const Window& window) {
        const Span span = entries_of(heights, p.branching, height, window.i0, window.nq);
        for (int64_t first = span.first; first < span.end; first += kTile)
          pair(height, window, first, min(kTile, span.end - first), q);
      });
    }
    const Rows<S> dq = rows_of<S>(g.dq, head.b, head.h);
    for (int64_t x = 0; x < nq; ++x) narrow_row(space.dq + x * kw, static_cast<T>(p.scale), p.head_size, dq, i0 + x);
  }

  void pair(int height, const Window& window, int64_t first, int64_t nk, DenseRows<T> all_queries) {
    const HsaStreamProblem& p = head.p;
    FamilyTile<T>& t = space.tile;
    const int64_t kw = t.key_width, vw = t.value_width;
    const auto [x0, i0, nq, lanes] = window;
    const DenseRows<T> q{all_queries.data + x0 * all_queries.step, all_queries.step};
    const T* dout_rows = space.dout_rows + x0 * vw;
    T* dq = space.dq + x0 * kw;
    const DenseRows<T> k =
        entry_rows<S, T>(head.k, nodes.k, heights, height, first, nk, kw, p.head_size, head, t.k_rows);
    const DenseRows<T> v =
        entry_rows<S, T>(head.v, nodes.v, heights, height, first, nk, vw, p.value_size, head, t.v_rows);
    stream_scores(head, heights, nodes, height, window, first, nk, k, t);
    gemm<T, Layout::kRowMajor>({v.data, v.step}, {space.dout_transposed + x0, kTile}, space.product, lanes, nk,
                               lanes / kLanes<T>, p.value_size, StartZero<T>());
    for (int64_t at = 0; at < nk * lanes; at += kLanes<T>) {
      const int64_t x = x0 + at % lanes;
      const Vec<T> P = exp2<T>(load(t.scores + at) - load(space.row_lse + x));
      store(t.scores + at, P);
      store(space.product + at, P * (load(space.product + at) - load(space.row_term + x)));
    }
    gemm<T, Layout::kTransposed>({space.product, lanes}, {k.data, k.step}, dq, kw, nq, kw / kLanes<T>, nk,
                                 StartFrom<T>{dq, kw});
    T* dk = height == 0 ? leaf_dk + first * kw : nodes.dk + (heights.offset[height] + first) * kw;
    T* dv = height == 0 ? leaf_dv + first * vw : nodes.dv + (heights.offset[height] + first) * vw;
    T* dkappa = height == 0 ? leaf_dkappa + first : nodes.dkappa + heights.offset[height] + first;
    gemm<T, Layout::kRowMajor>({space.product, lanes}, {q.data, q.step}, space.gradient, kw, nk, kw / kLanes<T>, nq,
                               StartZero<T>());
    for (int64_t at = 0; at < nk * kw; ++at) dk[at] += static_cast<T>(p.scale) * space.gradient[at];
    gemm<T, Layout::kRowMajor>({t.scores, lanes}, {dout_rows, vw}, dv, vw, nk, vw / kLanes<T>, nq,
                               StartFrom<T>{dv, vw});
    const int64_t b = p.branching, size = heights.size[height];
    for (int64_t y = 0; y < nk; ++y) {
      T sum = 0;
      for (int64_t x = 0; x < nq; ++x) sum += space.product[y * lanes + x];
      dkappa[y] += sum;
      for (int64_t x = 0; dpositions != nullptr && height < p.heights && x < nq; ++x) {
        const int64_t node = (i0 + x) / size;
        const T gradient = space.product[y * lanes + x];
        if (node != first + y && gradient != T(0))
          dpositions[(height * b + node % b) * b + (first + y) % b] += gradient;
      }
    }
  }

  // The gradients of all masses through log|B|: those of the scores are in dkappa.
  void start_masses() {
    for (int64_t at = 0; at < heights.total; ++at)
      nodes.dmass[at] = nodes.mass[at] > T(0) ? nodes.dkappa[at] / nodes.mass[at] : T(0);
    for (int64_t t = 0; t < head.p.tokens; ++t)
      leaf_dmass[t] = head.weight_of(t) > T(0) ? leaf_dkappa[t] / head.weight_of(t) : T(0);
  }

  // What the mass of a child changes in its node: |A|, and the means, which move towards the child's k, v and kappa.
  T mass_gradient(int height, int64_t at, int64_t child, int64_t below) const {
    const int64_t kw = nodes.key_width, vw = nodes.value_width;
    const T *dk = nodes.dk + at * kw, *dv = nodes.dv + at * vw, *k = nodes.k + at * kw, *v = nodes.v + at * vw;
    T sum = nodes.dkappa[at] * ((height == 1 ? head.kappa_of(child) : nodes.kappa[below]) - nodes.kappa[at]);
    for (int64_t c = 0; c < head.p.head_size; ++c)
      sum += dk[c] * ((height == 1 ? widen(head.k.at(child, c)) : nodes.k[below * kw + c]) - k[c]);
    for (int64_t c = 0; c < head.p.value_size; ++c)
      sum += dv[c] * ((height == 1 ? widen(head.v.at(child, c)) : nodes.v[below * vw + c]) - v[c]);
    return nodes.dmass[at] + sum / nodes.mass[at];
  }

  // The gradient that each child gets through the mean of its node.
  void push_down() {
    const int64_t b = head.p.branching, kw = nodes.key_width, vw = nodes.value_width;
    for (int height = heights.count - 1; height >= 1; --height) {
      for (int64_t n = 0; n < head.p.tokens / heights.size[height]; ++n) {
        const int64_t at = heights.offset[height] + n;
        if (!(nodes.mass[at] > T(0))) continue;
        for (int64_t child = n * b; child < (n + 1) * b; ++child) {
          const int64_t below = height == 1 ? child : heights.offset[height - 1] + child;
          const T share = (height == 1 ? head.weight_of(child) : nodes.mass[below]) / nodes.mass[at];
          T* dk = (height == 1 ? leaf_dk : nodes.dk) + below * kw;
          T* dv = (height == 1 ? leaf_dv : nodes.dv) + below * vw;
          for (int64_t c = 0; c < kw; ++c) dk[c] += share * nodes.dk[at * kw + c];
          for (int64_t c = 0; c < vw; ++c) dv[c] += share * nodes.dv[at * vw + c];
          (height == 1 ? leaf_dkappa : nodes.dkappa)[below] += share * nodes.dkappa[at];
          if (g.dweights.data != nullptr && share > T(0))
            (height == 1 ? leaf_dmass : nodes.dmass)[below] += mass_gradient(height, at, child, below);
        }
      }
    }
  }
};

template <class S>
bool backward(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, const HsaStreamGradients& g, int threads) {
  using T = typename Compute<S>::Type;
  const Heights heights(p.tokens, p.branching);
  const int64_t streams = p.batch * p.heads, table = p.heights * p.branching * p.branching;
  auto lay_out = [&](Arena& arena, auto use) {
    StreamSpace<T> space(p, arena);
    StreamNodes<T> nodes(p, heights.total, true, arena);
    T* leaf_dk = arena.take<T>(p.tokens * nodes.key_width);
    T* leaf_dv = arena.take<T>(p.tokens * nodes.value_width);
    T* leaf_dkappa = arena.take<T>(p.tokens);
    T* leaf_dmass = arena.take<T>(g.dweights.data == nullptr ? 0 : p.tokens);
    use(space, nodes, leaf_dk, leaf_dv, leaf_dkappa, leaf_dmass);
  };
  Arena measure(nullptr);
  lay_out(measure, [](auto&...) {});
  const Workspace workspace(measure.used(), threads);
  const Workspace tables(g.dpositions == nullptr ? 0 : streams * table * static_cast<int64_t>(sizeof(T)), 1);
  if (!workspace.ok() || !tables.ok()) return false;
  T* partial = static_cast<T*>(tables.slice(0));
  if (g.dpositions != nullptr) memset(partial, 0, sizeof(T) * streams * table);
  parallel_items(streams, threads, [&](int64_t stream, int thread) {
    Arena arena(workspace.slice(thread));
    lay_out(arena, [&](StreamSpace<T>& space, StreamNodes<T>& nodes, T* leaf_dk, T* leaf_dv, T* leaf_dkappa,
                       T* leaf_dmass) {
      const StreamHead<S> head(p, stream / p.heads, stream % p.heads);
      T* dpositions = g.dpositions == nullptr ? nullptr : partial + stream * table;
      StreamBackward<S>{head, outputs, g, heights, nodes, space, leaf_dk, leaf_dv, leaf_dkappa, leaf_dmass, dpositions}
          .run();
    });
  });
  for (int64_t h = 0; g.dpositions != nullptr && h < p.heads; ++h) {  // over the batch, in order
    T* to = static_cast<T*>(g.dpositions) + h * table;
    memset(to, 0, sizeof(T) * table);
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t at = 0; at < table; ++at) to[at] += partial[(b * p.heads + h) * table + at];
  }
  return true;
}

}  // namespace

bool hsa_stream_forward_cpu(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, int threads) {
  return with_storage(p.dtype, [&](auto storage) { return forward<decltype(storage)>(p, outputs, threads); });
}

bool hsa_stream_backward_cpu(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, const HsaStreamGradients& g,
                             int threads) {
  return with_storage(p.dtype, [&](auto storage) { return backward<decltype(storage)>(p, outputs, g, threads); });
}

}  // namespace strata::STRATA_ISA
