// What the passes of streaming attention share (docs/MATH.md, sections 2.5 and 3): the means of all nodes that are
// seen, and the scores of a tile of kTile queries against the entries of one height. Where a family covers fewer
// queries than a tile, the tile is processed window by window, so that few entries are computed that no query sees; a
// mask hides these.
#pragma once

#include "base/stream_rows.h"
#include "cpu/hkt_tile.h"
#include "cpu/hsa_cpu_kernels.h"
#include "cpu/level_mix.h"
#include "cpu/softmax.h"
#include "cpu/weighted_rows.h"
#include "strata/hsa_stream.h"

namespace strata::STRATA_ISA {

constexpr int kMaxHeights = 32;

// The nodes of every height above the leaves that some token sees, one height after the other.
struct Heights {
  explicit Heights(const HsaStreamProblem& p) : branching(p.branching), near(p.near), both_sides(p.both_sides) {
    size[0] = 1;
    offset[0] = 0;
    nodes[0] = p.tokens;
    for (;;) {
      const int64_t next = size[count - 1] * branching;
      // Causal: nodes up to the last token's ancestor minus n. Both sides: all, as soon as two are n apart.
      const int64_t all = (p.tokens + next - 1) / next, seen = both_sides ? all : all - near;
      if (all <= near) break;
      size[count] = next;
      offset[count] = total;
      nodes[count] = seen;
      total += seen;
      ++count;
    }
  }

  // Entries of one height that some query of i0 .. i0 + nq - 1 sees are among first .. end - 1.
  struct Span {
    int64_t first, end;
  };
  Span span(int height, int64_t i0, int64_t nq) const {
    const int64_t a = i0 / size[height], last = (i0 + nq - 1) / size[height];
    const int64_t first = max(0, a / branching - near + 1) * branching;
    if (both_sides) return {first, min(nodes[height], (last / branching + near) * branching)};
    return {first, height == 0 ? last + 1 : last - near + 1};
  }

  // The queries that see entry m: begin .. end - 1 without hole_begin .. hole_end - 1, as offsets from i0, in 0 .. nq.
  struct Seen {
    int64_t begin, end, hole_begin, hole_end;
  };
  Seen seen(int height, int64_t m, int64_t i0, int64_t nq) const {
    const int64_t family = m / branching * branching;
    auto clip = [&](int64_t node) { return max(0, min(nq, node * size[height] - i0)); };
    Seen s{clip(height == 0 ? m : m + near), clip(family + near * branching), 0, 0};
    if (both_sides) {
      s.begin = clip(family - (near - 1) * branching);
      if (height > 0) s.hole_begin = clip(m - near + 1), s.hole_end = clip(m + near);
    }
    s.end = max(s.begin, s.end);
    return s;
  }

  int64_t branching, near;
  bool both_sides;
  int count = 1;  // heights with nodes, leaves included
  int64_t size[kMaxHeights];
  int64_t offset[kMaxHeights];  // of a height's first node among all inner nodes
  int64_t nodes[kMaxHeights];
  int64_t total = 0;
};

template <class T>
struct StreamNodes {
  StreamNodes(const HsaStreamProblem& p, int64_t nodes, bool gradients, Arena& arena)
      : key_width(round_up(p.head_size, kLanes<T>)), value_width(round_up(p.value_size, kLanes<T>)) {
    mass = arena.take<T>(nodes);
    kappa = arena.take<T>(nodes);
    v = arena.take<T>(nodes * value_width);
    dv = arena.take<T>(gradients ? nodes * value_width : 0);
    for (int l = 0; l < p.levels; ++l) {
      k[l] = arena.take<T>(nodes * key_width);
      dk[l] = arena.take<T>(gradients ? nodes * key_width : 0);
    }
    dkappa = arena.take<T>(gradients ? nodes : 0);
    dmass = arena.take<T>(gradients && p.weights.data != nullptr ? nodes : 0);
  }
  int64_t key_width, value_width;
  T *mass, *kappa, *v, *dv, *dkappa, *dmass;
  T *k[kMaxLevels], *dk[kMaxLevels];
};

// One sequence and one key head.
template <class S>
struct StreamKeys {
  using T = typename Compute<S>::Type;
  StreamKeys(const HsaStreamProblem& problem, int64_t b_, int64_t h_) : p(problem), b(b_), h(h_) {
    for (int l = 0; l < p.levels; ++l) k[l] = rows_of<S>(p.k[l], b, h);
    v = rows_of<S>(p.v, b, h);
    if (p.weights.data != nullptr) weights = rows_of<T>(p.weights, b, 0);
    if (p.key_bias.data != nullptr) kappa = rows_of<T>(p.key_bias, b, h);
  }
  T weight_of(int64_t t) const { return weights.data == nullptr ? T(1) : weights.at(t, 0); }
  T kappa_of(int64_t t) const { return kappa.data == nullptr ? T(0) : kappa.at(t, 0); }
  // Whether a row of level l stands for a token that counts; others may hold anything.
  bool is_real(int l, int64_t row) const {
    if (weights.data == nullptr) return true;
    for (int64_t t = row << l; t < min(p.tokens, (row + 1) << l); ++t)
      if (weight_of(t) != T(0)) return true;
    return false;
  }

  const HsaStreamProblem& p;
  int64_t b, h;
  Rows<const S> k[kMaxLevels];
  Rows<const S> v;
  Rows<const T> weights{}, kappa{};
};

// One sequence and one query head.
template <class S>
struct StreamHead : StreamKeys<S> {
  using T = typename Compute<S>::Type;
  StreamHead(const HsaStreamProblem& p, int64_t b, int64_t query_head)
      : StreamKeys<S>(p, b, query_head / (p.heads / p.key_heads)), head(query_head) {
    for (int l = 0; l < p.levels; ++l) q[l] = rows_of<S>(p.q[l], b, head);
    distances = hsa_distances(p);
    const int64_t table = p.heights * distances * p.branching * p.branching;
    if (p.positions != nullptr) positions = static_cast<const T*>(p.positions) + head * table;
    if (p.level_weights != nullptr) level_weights = static_cast<const T*>(p.level_weights) + head * p.levels;
  }
  // hsa_stream_distances() of strata/hsa_stream.h, which these files must not call (cpu/simd.h).
  static int64_t hsa_distances(const HsaStreamProblem& p) { return p.both_sides ? 2 * int64_t{p.near} - 1 : p.near; }
  T level_weight(int l) const { return level_weights == nullptr ? T(1) : level_weights[l]; }
  bool is_positioned(int height) const { return positions != nullptr && height < this->p.heights; }
  // Index into the positions of a head: node m as seen from below `ancestor`, both of this height.
  int64_t position(int height, int64_t ancestor, int64_t m) const {
    const int64_t b = this->p.branching, back = ancestor / b - m / b + (this->p.both_sides ? this->p.near - 1 : 0);
    return ((height * distances + back) * b + ancestor % b) * b + m % b;
  }

  int64_t head, distances;
  Rows<const S> q[kMaxLevels];
  const T* positions = nullptr;
  const T* level_weights = nullptr;
};

// Rows first .. first + count - 1 of a level of the leaves as dense T, padded to whole vectors: in place if they are
// stored so, else gathered into scratch.
template <class S, class T>
DenseRows<T> leaf_rows(const StreamKeys<S>& keys, Rows<const S> rows, int l, int64_t first, int64_t count,
                       int64_t width, int64_t channels, T* scratch) {
  if constexpr (sizeof(S) == sizeof(T)) {
    if (rows.channel_stride == 1 && channels == width && keys.weights.data == nullptr) {
      return {&rows.at(first, 0), rows.token_stride};
    }
  }
  for (int64_t n = 0; n < count; ++n) {
    const bool real = keys.is_real(l, first + n);
    pack_rows<S, T>(rows, first + n, real ? 1 : 0, channels, T(1), scratch + n * width, 1, width);
  }
  return {scratch, width};
}

// mean = sum of shares[n] * rows[n]
template <class T>
void weighted_mean(DenseRows<T> rows, const T* shares, int64_t count, int64_t width, T* mean) {
  memset(mean, 0, sizeof(T) * width);
  add_weighted(rows, shares, count, width, mean);
}

template <class S, class T>
void make_nodes(const StreamKeys<S>& keys, const Heights& heights, StreamNodes<T>& nodes, T* scratch) {
  const int64_t b = heights.branching, kw = nodes.key_width, vw = nodes.value_width;
  const HsaStreamProblem& p = keys.p;
  for (int height = 1; height < heights.count; ++height) {
    const int64_t below = heights.offset[height - 1];
    for (int64_t n = 0; n < heights.nodes[height]; ++n) {
      const int64_t at = heights.offset[height] + n, first = n * b, count = min(b, heights.nodes[height - 1] - first);
      T mass = 0, kappa = 0, share[kMaxBranching], rows_share[kMaxBranching];
      for (int64_t c = 0; c < count; ++c) {
        share[c] = height == 1 ? keys.weight_of(first + c) : nodes.mass[below + first + c];
        mass += share[c];
      }
      for (int64_t c = 0; c < count; ++c) {
        share[c] = mass > T(0) ? share[c] / mass : T(0);
        if (share[c] > T(0))
          kappa += share[c] * (height == 1 ? keys.kappa_of(first + c) : nodes.kappa[below + first + c]);
      }
      nodes.mass[at] = mass;
      nodes.kappa[at] = kappa;
      if (height > 1) {
        for (int l = 0; l < p.levels; ++l)
          weighted_mean<T>({nodes.k[l] + (below + first) * kw, kw}, share, count, kw, nodes.k[l] + at * kw);
        weighted_mean<T>({nodes.v + (below + first) * vw, vw}, share, count, vw, nodes.v + at * vw);
        continue;
      }
      for (int64_t t = first + b; t < min(first + 2 * b, p.tokens); ++t) {  // of the node after this one
        prefetch_row(keys.k[0], t, p.head_size);
        prefetch_row(keys.v, t, p.value_size);
      }
      for (int l = 0; l < p.levels; ++l) {
        const LevelAxis axis{first, count, true};
        const int64_t rows = axis.size(l);
        const T* shares = axis.sum_shares(l, share, rows_share) ? rows_share : share;
        weighted_mean(leaf_rows<S, T>(keys, keys.k[l], l, axis.origin(l), rows, kw, p.head_size, scratch), shares, rows,
                      kw, nodes.k[l] + at * kw);
      }
      weighted_mean(leaf_rows<S, T>(keys, keys.v, 0, first, count, vw, p.value_size, scratch), share, count, vw,
                    nodes.v + at * vw);
    }
  }
}

// Work space of one thread.
template <class T>
struct StreamSpace {
  StreamSpace(const HsaStreamProblem& p, Arena& arena)
      : key_width(round_up(p.head_size, kLanes<T>)),
        value_width(round_up(p.value_size, kLanes<T>)),
        products(max(key_width, value_width), arena) {
    for (int l = 0; l < p.levels; ++l) {
      // Windows may start between two vectors, so what is read past a row must be memory of ours.
      queries[l] = arena.take<T>(p.head_size * level_lanes<T>(l) + kLanes<T>);
      scores[l] = arena.take<T>(kTile * level_lanes<T>(l));
      product[l] = arena.take<T>(kTile * level_lanes<T>(l));
      q_rows[l] = arena.take<T>(level_lanes<T>(l) * key_width);
      k_rows[l] = arena.take<T>((level_rows(kTile, l) + 1) * key_width);
      dq[l] = arena.take<T>(level_lanes<T>(l) * key_width);
    }
    const int64_t widest = max(key_width, value_width);
    v_rows = arena.take<T>(kTile * value_width);
    acc = arena.take<T>(kTile * value_width);
    dout_rows = arena.take<T>(kTile * value_width);
    dout_transposed = arena.take<T>(p.value_size * kTile);
    gradient = arena.take<T>(kTile * widest);
    scratch = arena.take<T>(kTile * widest);
    for (T** row : {&peak, &sum, &factor, &row_lse, &row_term}) *row = arena.take<T>(kTile);
  }

  int64_t key_width, value_width;
  T* queries[kMaxLevels];                      // (head_size, lanes) of level l, times scale * a_l * log2(e)
  T* scores[kMaxLevels];                       // (entries, lanes): the mix of the levels from l up, in units of log 2
  T* product[kMaxLevels];                      // (entries, lanes): the gradient of the scores, summed to level l
  T *q_rows[kMaxLevels], *k_rows[kMaxLevels];  // (rows, key_width)
  T* dq[kMaxLevels];                           // (lanes, key_width): sum of dS k, before scale * a_l
  T *v_rows, *acc, *dout_rows, *dout_transposed, *gradient, *scratch;
  T *peak, *sum, *factor, *row_lse, *row_term;  // per query
  ProductSpace<T> products;
};

// Some queries of a tile: x0 .. x0 + nq - 1, in `lanes` lanes; the first of them is token i0.
struct Window {
  int64_t x0, i0, nq, lanes;
};

// Calls body(window) for the windows of a tile of nq queries from token i0 on. A window is as wide as a family of this
// height, in whole vectors, unless it sees so many families that a whole tile costs little more.
template <class T, class Body>
void each_window(const Heights& heights, int height, int64_t i0, int64_t nq, const Body& body) {
  const int64_t family = heights.branching * heights.size[height];
  const bool whole = heights.size[height] >= kTile || heights.near * family >= 4 * kTile;
  const int64_t width = whole ? kTile : round_up(family, kLanes<T>);
  for (int64_t x0 = 0; x0 < nq; x0 += width) body(Window{x0, i0 + x0, min(width, nq - x0), min(width, kTile - x0)});
}

// Up to kTile entries of one height against a window.
template <class T>
struct StreamPair {
  int height;
  Window window;
  int64_t first, count;  // entries
  DenseRows<T> keys[kMaxLevels];

  LevelGrid grid() const { return {{first, count, height == 0}, {window.i0, window.lanes, true}}; }
};

// Calls body(pair) for the entries that a window sees, kTile at a time.
template <class S, class T, class Body>
void each_pair(const StreamHead<S>& head, const Heights& heights, const StreamNodes<T>& nodes, int height,
               const Window& window, StreamSpace<T>& space, const Body& body) {
  const auto [begin, end] = heights.span(height, window.i0, window.nq);
  const int64_t kw = nodes.key_width;
  for (int64_t first = begin; first < end; first += kTile) {
    StreamPair<T> pair{height, window, first, min(kTile, end - first), {}};
    for (int l = 0; l < head.p.levels; ++l) {
      const LevelAxis& axis = pair.grid().keys;
      pair.keys[l] = height > 0 ? DenseRows<T>{nodes.k[l] + (heights.offset[height] + first) * kw, kw}
                                : leaf_rows<S, T>(head, head.k[l], l, axis.origin(l), axis.size(l), kw,
                                                  head.p.head_size, space.k_rows[l]);
    }
    body(pair);
  }
}

template <class S, class T>
DenseRows<T> entry_values(const StreamHead<S>& head, const Heights& heights, const StreamNodes<T>& nodes,
                          const StreamPair<T>& pair, T* scratch) {
  const int64_t width = nodes.value_width;
  if (pair.height > 0) return {nodes.v + (heights.offset[pair.height] + pair.first) * width, width};
  return leaf_rows<S, T>(head, head.v, 0, pair.first, pair.count, width, head.p.value_size, scratch);
}

// Scores of a pair; -inf outside of what each query sees.
template <class S, class T>
void stream_scores(const StreamHead<S>& head, const Heights& heights, const StreamNodes<T>& nodes,
                   const StreamPair<T>& pair, StreamSpace<T>& space) {
  const auto [x0, i0, nq, lanes] = pair.window;
  const int height = pair.height;
  GemmOperand<T> queries[kMaxLevels];
  for (int l = 0; l < head.p.levels; ++l)
    queries[l] = {space.queries[l] + ((i0 >> l) - ((i0 - x0) >> l)), level_lanes<T>(l)};
  mix_levels<T>(space.products, pair.grid(), head.p.levels, head.p.head_size, pair.keys, queries, space.scores);
  for (int64_t y = 0; y < pair.count; ++y) {
    const int64_t n = pair.first + y;
    T* row = space.scores[0] + y * lanes;
    const T mass = height == 0 ? head.weight_of(n) : nodes.mass[heights.offset[height] + n];
    const T kappa = height == 0 ? head.kappa_of(n) : nodes.kappa[heights.offset[height] + n];
    const T term = mass == T(0) ? -kInfinity<T> : (natural_log(mass) + kappa) * kLog2E<T>;
    const auto [begin, end, hole_begin, hole_end] = heights.seen(height, n, i0, nq);
    if (head.is_positioned(height)) {
      for (int64_t x = begin; x < end; ++x) {
        const int64_t ancestor = (i0 + x) / heights.size[height];
        if (ancestor != n) row[x] += kLog2E<T> * head.positions[head.position(height, ancestor, n)];
      }
    }
    for (int64_t x = 0; x < begin; ++x) row[x] = -kInfinity<T>;
    for (int64_t x = begin; x < end; ++x) row[x] += term;
    for (int64_t x = end; x < lanes; ++x) row[x] = -kInfinity<T>;
    for (int64_t x = hole_begin; x < hole_end; ++x) row[x] = -kInfinity<T>;
  }
}

// Calls f(place in the tile of scores, factor) for every pair whose weight dropout changes: 0, or 1 / (1 - p).
template <class S, class T, class F>
void each_dropout(const StreamHead<S>& head, const StreamPair<T>& pair, const F& f) {
  const Dropout& dropout = head.p.dropout;
  const uint64_t key = dropout_key(dropout.state);
  const uint32_t threshold = dropout_threshold(dropout.probability);
  const T kept = static_cast<T>(dropout_factor(threshold));
  for (int64_t x = 0; x < pair.window.nq; ++x) {
    uint32_t bits = 0;
    for (int64_t y = 0; y < pair.count; ++y) {
      const int64_t node = pair.first + y;
      if (y == 0 || node % 8 == 0) {
        bits = kept_bits(key, threshold, static_cast<uint32_t>(head.b), static_cast<uint32_t>(head.head),
                         static_cast<uint32_t>(pair.window.i0 + x), stream_block(pair.height, node));
      }
      f(y * pair.window.lanes + x, (bits >> (node & 7) & 1) != 0 ? kept : T(0));
    }
  }
}

// The problem of one sequence, as its tree sees it: packed sequences have different lengths.
inline HsaStreamProblem of_sequence(HsaStreamProblem p, int64_t b) {
  p.tokens = stream_tokens(p, b);
  return p;
}

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

// The queries of all levels for the tile of nq tokens from i0 on, as rows and transposed.
template <class S, class T>
void load_queries(const StreamHead<S>& head, int64_t i0, int64_t nq, StreamSpace<T>& space) {
  const HsaStreamProblem& p = head.p;
  for (int l = 0; l < p.levels; ++l) {
    const int64_t rows = ((i0 + nq - 1) >> l) - (i0 >> l) + 1, lanes = level_lanes<T>(l);
    pack_rows<S, T>(head.q[l], i0 >> l, rows, p.head_size, T(1), space.q_rows[l], lanes, space.key_width);
    transpose_rows<T>({space.q_rows[l], space.key_width}, rows, p.head_size,
                      static_cast<T>(p.scale) * head.level_weight(l) * kLog2E<T>, space.queries[l], lanes);
  }
}

}  // namespace strata::STRATA_ISA
