// Streaming attention, backward: every tile of queries adds to the gradients of the nodes and leaves of its key head,
// in order; then each node hands its gradients down to its children.
#include "cpu/hsa_stream_tile.h"
#include "cpu/parallel.h"

namespace strata::STRATA_ISA {
namespace {

// Gradients of the leaves of one key head, in the compute type.
template <class T>
struct LeafGradients {
  LeafGradients(const HsaStreamProblem& p, bool masses, Arena& arena)
      : key_width(round_up(p.head_size, kLanes<T>)), value_width(round_up(p.value_size, kLanes<T>)) {
    for (int l = 0; l < p.levels; ++l) dk[l] = arena.take<T>(level_rows(p.tokens, l) * key_width);
    dv = arena.take<T>(p.tokens * value_width);
    dkappa = arena.take<T>(p.tokens);
    dmass = arena.take<T>(masses ? p.tokens : 0);
  }
  int64_t key_width, value_width;
  T* dk[kMaxLevels];
  T *dv, *dkappa, *dmass;
};

// What the query heads of a key head share.
template <class S>
struct KeyBackward {
  using T = typename Compute<S>::Type;
  const StreamKeys<S>& keys;
  const HsaStreamGradients& g;
  const Heights& heights;
  StreamNodes<T>& nodes;
  LeafGradients<T>& leaves;
  T* scratch;

  void start() {
    const HsaStreamProblem& p = keys.p;
    make_nodes(keys, heights, nodes, scratch);
    for (int l = 0; l < p.levels; ++l) {
      memset(nodes.dk[l], 0, sizeof(T) * heights.total * nodes.key_width);
      memset(leaves.dk[l], 0, sizeof(T) * level_rows(p.tokens, l) * nodes.key_width);
    }
    memset(nodes.dv, 0, sizeof(T) * heights.total * nodes.value_width);
    memset(nodes.dkappa, 0, sizeof(T) * heights.total);
    memset(leaves.dv, 0, sizeof(T) * p.tokens * nodes.value_width);
    memset(leaves.dkappa, 0, sizeof(T) * p.tokens);
  }

  void finish() {
    const HsaStreamProblem& p = keys.p;
    if (g.dweights.data != nullptr) start_masses();
    push_down();
    for (int l = 0; l < p.levels; ++l) {
      const Rows<S> dk = rows_of<S>(g.dk[l], keys.b, keys.h);
      for (int64_t r = 0; r < level_rows(p.tokens, l); ++r)
        narrow_row(leaves.dk[l] + r * nodes.key_width, T(1), p.head_size, dk, r);
    }
    const Rows<S> dv = rows_of<S>(g.dv, keys.b, keys.h);
    for (int64_t t = 0; t < p.tokens; ++t) narrow_row(leaves.dv + t * nodes.value_width, T(1), p.value_size, dv, t);
    if (g.dkey_bias.data != nullptr) {
      const Rows<T> to = rows_of<T>(g.dkey_bias, keys.b, keys.h);
      for (int64_t t = 0; t < p.tokens; ++t) to.at(t, 0) = leaves.dkappa[t];
    }
    if (g.dweights.data != nullptr) {
      const Rows<T> to = rows_of<T>(g.dweights, keys.b, keys.h);
      for (int64_t t = 0; t < p.tokens; ++t) to.at(t, 0) = keys.weight_of(t) > T(0) ? leaves.dmass[t] : T(0);
    }
  }

  // The gradients of all masses through log|m|: those of the scores are in dkappa.
  void start_masses() {
    for (int64_t at = 0; at < heights.total; ++at)
      nodes.dmass[at] = nodes.mass[at] > T(0) ? nodes.dkappa[at] / nodes.mass[at] : T(0);
    for (int64_t t = 0; t < keys.p.tokens; ++t)
      leaves.dmass[t] = keys.weight_of(t) > T(0) ? leaves.dkappa[t] / keys.weight_of(t) : T(0);
  }

  // What the mass of a child changes in its node: |A|, and the means, which move towards the child's k, v and kappa.
  T mass_gradient(int height, int64_t at, int64_t child) const {
    const HsaStreamProblem& p = keys.p;
    const int64_t kw = nodes.key_width, vw = nodes.value_width, below = heights.offset[height - 1] + child;
    const T *dv = nodes.dv + at * vw, *v = nodes.v + at * vw;
    T sum = nodes.dkappa[at] * ((height == 1 ? keys.kappa_of(child) : nodes.kappa[below]) - nodes.kappa[at]);
    for (int l = 0; l < p.levels; ++l) {
      const T *dk = nodes.dk[l] + at * kw, *k = nodes.k[l] + at * kw;
      for (int64_t c = 0; c < p.head_size; ++c)
        sum += dk[c] * ((height == 1 ? widen(keys.k[l].at(child >> l, c)) : nodes.k[l][below * kw + c]) - k[c]);
    }
    for (int64_t c = 0; c < p.value_size; ++c)
      sum += dv[c] * ((height == 1 ? widen(keys.v.at(child, c)) : nodes.v[below * vw + c]) - v[c]);
    return nodes.dmass[at] + sum / nodes.mass[at];
  }

  // The gradient that each child gets through the mean of its node.
  void push_down() {
    for (int height = heights.count - 1; height >= 1; --height)
      for (int64_t n = 0; n < heights.nodes[height]; ++n) push_down(height, n);
  }
  void push_down(int height, int64_t n) {
    const int64_t b = heights.branching, kw = nodes.key_width, vw = nodes.value_width;
    const int64_t at = heights.offset[height] + n, first = n * b, count = min(b, heights.nodes[height - 1] - first);
    if (!(nodes.mass[at] > T(0))) return;
    auto add = [](T* to, T share, const T* from, int64_t width) {
      for (int64_t c = 0; c < width; ++c) to[c] += share * from[c];
    };
    const bool leaf = height == 1;
    const int64_t below = (leaf ? 0 : heights.offset[height - 1]) + first;
    T shares[kMaxBranching], rows_share[kMaxBranching];
    for (int64_t c = 0; c < count; ++c) {
      shares[c] = (leaf ? keys.weight_of(first + c) : nodes.mass[below + c]) / nodes.mass[at];
      add((leaf ? leaves.dv : nodes.dv) + (below + c) * vw, shares[c], nodes.dv + at * vw, vw);
      (leaf ? leaves.dkappa : nodes.dkappa)[below + c] += shares[c] * nodes.dkappa[at];
      if (g.dweights.data != nullptr && shares[c] > T(0))
        (leaf ? leaves.dmass : nodes.dmass)[below + c] += mass_gradient(height, at, first + c);
    }
    const LevelAxis axis{first, count, leaf};
    for (int l = 0; l < keys.p.levels; ++l) {
      const T* level_shares = axis.sum_shares(l, shares, rows_share) ? rows_share : shares;
      T* dk = leaf ? leaves.dk[l] + axis.origin(l) * kw : nodes.dk[l] + below * kw;
      for (int64_t r = 0; r < axis.size(l); ++r) add(dk + r * kw, level_shares[r], nodes.dk[l] + at * kw, kw);
    }
  }
};

// The tiles of one query head.
template <class S>
struct HeadBackward {
  using T = typename Compute<S>::Type;
  const StreamHead<S>& head;
  const HsaStreamOutputs& outputs;
  const HsaStreamGradients& g;
  const Heights& heights;
  StreamNodes<T>& nodes;
  LeafGradients<T>& leaves;
  StreamSpace<T>& space;
  T* dpositions;  // of this head and sequence, or null
  T* dlevels;     // likewise: (levels)

  void run() {
    for (int64_t i0 = 0; i0 < head.p.tokens; i0 += kTile) tile(i0);
  }

  void tile(int64_t i0) {
    const HsaStreamProblem& p = head.p;
    const int64_t nq = min(kTile, p.tokens - i0), vw = space.value_width;
    load_queries(head, i0, nq, space);
    const Rows<const S> dout = rows_of<S>(g.dout, head.b, head.head);
    const Rows<S> out = rows_of<S>(outputs.out, head.b, head.head);
    pack_rows<S, T>(dout, i0, nq, p.value_size, T(1), space.dout_rows, kTile, vw);
    const int64_t row0 = stream_line(p, head.b, head.head) + i0;
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
    for (int l = 0; l < p.levels; ++l) {  // a coarse query may span several tiles
      if (i0 % (int64_t{1} << l) == 0) memset(space.dq[l], 0, sizeof(T) * level_lanes<T>(l) * space.key_width);
    }
    for (int height = 0; height < heights.count; ++height) {
      each_window<T>(heights, height, i0, nq, [&](const Window& window) {
        each_pair(head, heights, nodes, height, window, space, [&](const StreamPair<T>& pair) { add_pair(pair); });
      });
    }
    for (int l = 0; l < p.levels; ++l) store_queries(l, i0, nq);
  }

  // dq^(l) = s a_l G and da_l += s <G, q^(l)> for the rows that end with this tile.
  void store_queries(int l, int64_t i0, int64_t nq) {
    const HsaStreamProblem& p = head.p;
    if ((i0 + kTile) % (int64_t{1} << l) != 0 && i0 + kTile < p.tokens) return;
    const int64_t rows = ((i0 + nq - 1) >> l) - (i0 >> l) + 1, kw = space.key_width;
    const T scale = static_cast<T>(p.scale);
    const Rows<S> dq = rows_of<S>(g.dq[l], head.b, head.head);
    for (int64_t r = 0; r < rows; ++r) {
      const T *G = space.dq[l] + r * kw, *q = space.q_rows[l] + r * kw;
      narrow_row(G, scale * head.level_weight(l), p.head_size, dq, (i0 >> l) + r);
      if (dlevels == nullptr) continue;
      T dot = 0;
      for (int64_t c = 0; c < p.head_size; ++c) dot += G[c] * q[c];
      dlevels[l] += scale * dot;
    }
  }

  void add_pair(const StreamPair<T>& pair) {
    const HsaStreamProblem& p = head.p;
    const int64_t vw = space.value_width, count = pair.count;
    const auto [x0, i0, nq, lanes] = pair.window;
    const DenseRows<T> v = entry_values(head, heights, nodes, pair, space.v_rows);
    stream_scores(head, heights, nodes, pair, space);
    T *scores = space.scores[0], *product = space.product[0];
    multiply_tiles<T, Layout::kRowMajor>(space.products, {v.data, v.step}, {space.dout_transposed + x0, kTile}, product,
                                         lanes, count, lanes / kLanes<T>, p.value_size, StartZero<T>());
    const bool drop = p.dropout.probability > 0;
    if (drop) each_dropout(head, pair, [&](int64_t at, T kept) { product[at] *= kept; });
    for (int64_t at = 0; at < count * lanes; at += kLanes<T>) {
      const int64_t x = x0 + at % lanes;
      const Vec<T> P = exp2<T>(load(scores + at) - load(space.row_lse + x));
      store(scores + at, P);
      store(product + at, P * (load(product + at) - load(space.row_term + x)));
    }
    add_key_gradients(pair);
    if (drop) each_dropout(head, pair, [&](int64_t place, T kept) { scores[place] *= kept; });
    const int64_t at = pair.height == 0 ? pair.first : heights.offset[pair.height] + pair.first;
    T* dv = (pair.height == 0 ? leaves.dv : nodes.dv) + at * vw;
    multiply_tiles<T, Layout::kRowMajor>(space.products, {scores, lanes}, {space.dout_rows + x0 * vw, vw}, dv, vw,
                                         count, vw / kLanes<T>, nq, StartFrom<T>{dv, vw});
    T* dkappa = (pair.height == 0 ? leaves.dkappa : nodes.dkappa) + at;
    for (int64_t y = 0; y < count; ++y) {
      T sum = 0;
      for (int64_t x = 0; x < nq; ++x) sum += product[y * lanes + x];
      dkappa[y] += sum;
    }
    if (dpositions != nullptr && pair.height < p.heights) add_position_gradients(pair);
  }

  void add_position_gradients(const StreamPair<T>& pair) {
    for (int64_t y = 0; y < pair.count; ++y) {
      for (int64_t x = 0; x < pair.window.nq; ++x) {
        const int64_t ancestor = (pair.window.i0 + x) / heights.size[pair.height], n = pair.first + y;
        const T gradient = space.product[0][y * pair.window.lanes + x];
        if (ancestor != n && gradient != T(0)) dpositions[head.position(pair.height, ancestor, n)] += gradient;
      }
    }
  }

  // G^(l) += dS k^(l) and dk^(l) += s a_l dS q^(l), dS summed to level l.
  void add_key_gradients(const StreamPair<T>& pair) {
    const HsaStreamProblem& p = head.p;
    const int64_t kw = space.key_width, i0 = pair.window.i0, tile0 = i0 - pair.window.x0;
    const LevelGrid grid = pair.grid();
    const T* dS = space.product[0];
    for (int l = 0; l < p.levels; ++l) {
      if (l > 0) dS = sum_level<T>(grid, l - 1, dS, space.product[l]);
      const int64_t rows = grid.keys.size(l), queries = grid.queries.size(l), lanes = grid.lanes<T>(l);
      const int64_t offset = (i0 >> l) - (tile0 >> l);
      const DenseRows<T> k = pair.keys[l];
      T* dq = space.dq[l] + offset * kw;
      multiply_tiles<T, Layout::kTransposed>(space.products, {dS, lanes}, {k.data, k.step}, dq, kw, queries,
                                             kw / kLanes<T>, rows, StartFrom<T>{dq, kw});
      multiply_tiles<T, Layout::kRowMajor>(space.products, {dS, lanes}, {space.q_rows[l] + offset * kw, kw},
                                           space.gradient, kw, rows, kw / kLanes<T>, queries, StartZero<T>());
      T* dk = pair.height == 0 ? leaves.dk[l] + grid.keys.origin(l) * kw
                               : nodes.dk[l] + (heights.offset[pair.height] + pair.first) * kw;
      const T factor = static_cast<T>(p.scale) * head.level_weight(l);
      for (int64_t at = 0; at < rows * kw; ++at) dk[at] += factor * space.gradient[at];
    }
  }
};

// to[h] = the sum over the batch of from[b][h], in order; `size` numbers each.
template <class T>
void sum_over_batch(const T* from, int64_t batch, int64_t heads, int64_t size, T* to) {
  for (int64_t at = 0; at < heads * size; ++at) {
    T sum = 0;
    for (int64_t b = 0; b < batch; ++b) sum += from[b * heads * size + at];
    to[at] = sum;
  }
}

template <class S>
bool backward(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, const HsaStreamGradients& g, int threads) {
  using T = typename Compute<S>::Type;
  const Heights heights(p);
  const int64_t streams = p.batch * p.heads, group = p.heads / p.key_heads;
  const int64_t table = p.heights * StreamHead<S>::hsa_distances(p) * p.branching * p.branching;
  auto lay_out = [&](Arena& arena, auto use) {
    StreamSpace<T> space(p, arena);
    StreamNodes<T> nodes(p, heights.total, true, arena);
    LeafGradients<T> leaves(p, g.dweights.data != nullptr, arena);
    use(space, nodes, leaves);
  };
  Arena measure(nullptr);
  lay_out(measure, [](auto&...) {});
  const Workspace workspace(measure.used(), threads);
  const int64_t tables_size = g.dpositions == nullptr ? 0 : streams * table;
  const int64_t levels_size = g.dlevel_weights == nullptr ? 0 : streams * p.levels;
  const Workspace sums(static_cast<int64_t>(sizeof(T)) * (tables_size + levels_size), 1);
  if (!workspace.ok() || !sums.ok()) return false;
  T* tables = static_cast<T*>(sums.slice(0));
  T* levels = tables + tables_size;
  memset(tables, 0, sizeof(T) * (tables_size + levels_size));
  parallel_items(p.batch * p.key_heads, threads, [&](int64_t item, int thread) {
    [[maybe_unused]] const ProductScope scope;
    Arena arena(workspace.slice(thread));
    lay_out(arena, [&](StreamSpace<T>& space, StreamNodes<T>& nodes, LeafGradients<T>& leaves) {
      const int64_t b = item / p.key_heads, key_head = item % p.key_heads;
      const HsaStreamProblem own = of_sequence(p, b);
      const Heights own_heights(own);
      const StreamKeys<S> keys(own, b, key_head);
      KeyBackward<S> of_keys{keys, g, own_heights, nodes, leaves, space.scratch};
      of_keys.start();
      for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h) {
        const int64_t stream = b * p.heads + h;
        HeadBackward<S>{StreamHead<S>(own, b, h),
                        outputs,
                        g,
                        own_heights,
                        nodes,
                        leaves,
                        space,
                        tables_size == 0 ? nullptr : tables + stream * table,
                        levels_size == 0 ? nullptr : levels + stream * p.levels}
            .run();
      }
      of_keys.finish();
    });
  });
  if (g.dpositions != nullptr) sum_over_batch(tables, p.batch, p.heads, table, static_cast<T*>(g.dpositions));
  if (g.dlevel_weights != nullptr)
    sum_over_batch(levels, p.batch, p.heads, p.levels, static_cast<T*>(g.dlevel_weights));
  return true;
}

}  // namespace

bool hsa_stream_backward_cpu(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, const HsaStreamGradients& g,
                             int threads) {
  return with_storage(p.dtype, [&](auto storage) { return backward<decltype(storage)>(p, outputs, g, threads); });
}

}  // namespace strata::STRATA_ISA
