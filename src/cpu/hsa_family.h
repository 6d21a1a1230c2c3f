// What the HSA passes share: one sequence and head, the means of its nodes, and the scores of a family, tile by tile.
//
// As in hkt_tile.h, score tiles are transposed, S[b][c]: a row is one sibling b against the children c of the tile. A
// family of up to kTile children is a single tile; a larger one is processed tile by tile with an online softmax, so a
// star costs what flat attention costs.
#pragma once

#include "cpu/hkt_tile.h"
#include "cpu/level_mix.h"
#include "cpu/parallel.h"
#include "cpu/softmax.h"
#include "cpu/weighted_rows.h"
#include "strata/hsa.h"

namespace strata::STRATA_ISA {

// The leaves of one sequence and query head.
template <class S>
struct HsaHead {
  using T = typename Compute<S>::Type;

  HsaHead(const HsaProblem& problem, int64_t n_, int64_t h_)
      : p(problem), tree(problem.trees[n_]), n(n_), h(h_), key_head(h / (p.heads / p.key_heads)) {
    for (int l = 0; l < p.levels; ++l) {
      q[l] = leaves<const S>(p.q[l], h, l);
      k[l] = leaves<const S>(p.k[l], key_head, l);
    }
    if (p.v.data != nullptr) v = leaves<const S>(p.v, key_head);
    if (p.weights.data != nullptr) weights = leaves<const T>(p.weights, 0);
    if (p.key_bias.data != nullptr) kappa = leaves<const T>(p.key_bias, key_head);
    if (p.positions != nullptr) positions = static_cast<const T*>(p.positions) + h * p.kinds * p.places * p.places;
    if (p.level_weights != nullptr) level_weights = static_cast<const T*>(p.level_weights) + h * p.levels;
  }

  template <class Element, class AnyView>
  Rows<Element> leaves(const AnyView& view, int64_t head, int l = 0) const {
    const int64_t first = l == 0 ? p.first_token[n] : p.first_row[l][n];
    return {static_cast<Element*>(view.data) + p.batch_of[n] * view.stride[0] + head * view.stride[1] +
                first * view.stride[2],
            view.stride[2], view.stride[3]};
  }

  T weight_of(int64_t t) const { return weights.data == nullptr ? T(1) : weights.at(t, 0); }
  T kappa_of(int64_t t) const { return kappa.data == nullptr ? T(0) : kappa.at(t, 0); }
  T level_weight(int l) const { return level_weights == nullptr ? T(1) : level_weights[l]; }
  // Whether a row of level l stands for a token that counts; others may hold anything.
  bool is_real(int l, int64_t row) const {
    if (weights.data == nullptr) return true;
    for (int64_t t = row << l; t < min(tree.tokens, (row + 1) << l); ++t)
      if (weight_of(t) != T(0)) return true;
    return false;
  }
  // The position table of a family, or null.
  const T* table_of(int64_t family) const {
    const bool none = positions == nullptr || tree.kind[family] < 0;
    return none ? nullptr : positions + tree.kind[family] * p.places * p.places;
  }

  const HsaProblem& p;
  const TreeView& tree;
  int64_t n, h, key_head;
  Rows<const S> q[kMaxLevels], k[kMaxLevels];
  Rows<const S> v{};
  Rows<const T> weights{}, kappa{};
  const T *positions = nullptr, *level_weights = nullptr;
};

// The largest tree of a problem, which determines the size of a work space.
struct LargestTree {
  explicit LargestTree(const HsaProblem& p) {
    for (int64_t n = 0; n < p.sequences; ++n) {
      families = max(families, p.trees[n].families);
      tokens = max(tokens, p.trees[n].tokens);
    }
  }
  int64_t families = 0, tokens = 0;
};

// Numbers and vectors of the inner nodes; rows are padded to whole vectors.
template <class T>
struct Nodes {
  Nodes(const HsaProblem& p, int64_t families, Arena& arena)
      : key_width(round_up(p.head_size, kLanes<T>)),
        value_width(round_up(p.value_size, kLanes<T>)),
        weight(arena.take<T>(families)),
        kappa(arena.take<T>(families)),
        f(arena.take<T>(families)),
        Z(arena.take<T>(families)),
        m(arena.take<T>(families)),
        v(arena.take<T>(families * value_width)) {
    for (int l = 0; l < p.levels; ++l) {
      q[l] = arena.take<T>(families * key_width);
      k[l] = arena.take<T>(families * key_width);
    }
  }

  int64_t key_width, value_width;
  T *weight, *kappa, *f, *Z, *m;  // Z belongs to the node's own row among its siblings
  T* v;
  T *q[kMaxLevels], *k[kMaxLevels];
};

template <class T>
struct FamilyTile {
  FamilyTile(const HsaProblem& p, Arena& arena)
      : key_width(round_up(p.head_size, kLanes<T>)),
        value_width(round_up(p.value_size, kLanes<T>)),
        v_rows(arena.take<T>(kTile * value_width)),
        peak(arena.take<T>(kTile)),
        sum(arena.take<T>(kTile)),
        factor(arena.take<T>(kTile)),
        products(max(key_width, value_width), arena) {
    for (int l = 0; l < p.levels; ++l) {  // only families of neighbouring tokens have fewer rows at higher levels
      queries[l] = arena.take<T>(p.head_size * kTile);
      scores[l] = arena.take<T>(kTile * kTile);
      q_rows[l] = arena.take<T>(kTile * key_width);
      k_rows[l] = arena.take<T>(kTile * key_width);
    }
  }

  int64_t key_width, value_width;
  T* queries[kMaxLevels];                      // (head_size, lanes), times scale * a_l * log2(e)
  T* scores[kMaxLevels];                       // (siblings, lanes): the mix of the levels from l up, in units of log 2
  T *q_rows[kMaxLevels], *k_rows[kMaxLevels];  // scratch for rows that cannot be read in place
  T* v_rows;
  T *peak, *sum, *factor;  // of the online softmax, per lane
  ProductSpace<T> products;
};

// Where each depth begins in breadth-first order; `offsets` has room for families + 1. Returns the number of depths.
inline int64_t depth_offsets(const TreeView& tree, int32_t* offsets) {
  int64_t depths = 0, begin = 0, end = tree.families > 0 ? 1 : 0;
  while (begin < end) {
    offsets[depths++] = static_cast<int32_t>(begin);
    int64_t next = end;
    for (int32_t at = tree.child_begin[begin]; at < tree.child_begin[end]; ++at) next += tree.children[at] < 0;
    begin = end;
    end = next;
  }
  offsets[depths] = static_cast<int32_t>(tree.families);
  return depths;
}

// Calls body(family, thread) for every family. Families of one depth run in parallel: they are independent.
template <class Body>
void each_family(const int32_t* offsets, int64_t depths, bool bottom_up, int threads, const Body& body) {
  constexpr int64_t kChunk = 16;
  for (int64_t step = 0; step < depths; ++step) {
    const int64_t depth = bottom_up ? depths - 1 - step : step;
    const int64_t begin = offsets[depth], end = offsets[depth + 1];
    const int64_t chunks = (end - begin + kChunk - 1) / kChunk;
    auto run = [&](int64_t chunk, int thread) {
      [[maybe_unused]] const ProductScope scope;
      for (int64_t f = begin + chunk * kChunk; f < min(end, begin + (chunk + 1) * kChunk); ++f) body(f, thread);
    };
    if (chunks == 1) {
      run(0, 0);
    } else {
      parallel_items(chunks, threads, run);
    }
  }
}

inline bool all_tokens(const int32_t* children, int64_t count) {
  int32_t smallest = 0;
  for (int64_t c = 0; c < count; ++c) smallest = children[c] < smallest ? children[c] : smallest;
  return smallest >= 0;
}
inline bool all_families(const int32_t* children, int64_t count) {
  int32_t largest = -1;
  for (int64_t c = 0; c < count; ++c) largest = children[c] > largest ? children[c] : largest;
  return largest < 0;
}

// Consecutive children of a family as an axis of a tile: neighbouring tokens share their coarse rows.
inline LevelAxis child_axis(const int32_t* children, int64_t count, int levels) {
  bool neighbours = levels > 1 && children[0] >= 0;
  for (int64_t c = 1; c < count && neighbours; ++c) neighbours = children[c] == children[0] + c;
  return {neighbours ? children[0] : 0, count, neighbours};
}

// The rows of level l of consecutive children as dense T, each padded to whole vectors: in place if they are stored so,
// else gathered into scratch. Rows of tokens of weight 0 are zeros, whatever the token holds.
template <class S, class T>
inline DenseRows<T> child_rows(const HsaHead<S>& head, int l, Rows<const S> leaf, const T* node, int64_t width,
                               int64_t channels, const int32_t* children, const LevelAxis& axis, T* scratch) {
  const int64_t count = axis.count;
  if (all_families(children, count)) return {node + ~children[0] * width, width};  // neighbours in breadth-first order
  const bool shared = axis.shrinks && l > 0;
  if constexpr (sizeof(S) == sizeof(T)) {
    if (leaf.channel_stride == 1 && channels == width && head.weights.data == nullptr &&
        (axis.shrinks || (l == 0 && all_tokens(children, count)))) {
      return {&leaf.at(children[0] >> l, 0), leaf.token_stride};
    }
  }
  for (int64_t c = 0; c < (shared ? axis.size(l) : count); ++c) {
    T* row = scratch + c * width;
    if (!shared && children[c] < 0) {
      memcpy(row, node + ~children[c] * width, sizeof(T) * width);
    } else {
      const int64_t at = shared ? axis.origin(l) + c : children[c] >> l;
      const bool real = shared ? head.is_real(l, at) : head.weight_of(children[c]) != T(0);
      pack_rows<S, T>(leaf, at, real ? 1 : 0, channels, T(1), row, 1, width);
    }
  }
  return {scratch, width};
}

// The queries of some children, at all levels: as rows, and transposed into tile.queries.
template <class S, class T>
void load_child_queries(const HsaHead<S>& head, const Nodes<T>& nodes, const int32_t* children, const LevelAxis& axis,
                        FamilyTile<T>& tile, DenseRows<T>* rows) {
  const HsaProblem& p = head.p;
  for (int l = 0; l < p.levels; ++l) {
    rows[l] =
        child_rows<S, T>(head, l, head.q[l], nodes.q[l], nodes.key_width, p.head_size, children, axis, tile.q_rows[l]);
    const T factor = static_cast<T>(p.scale) * head.level_weight(l) * kLog2E<T>;
    transpose_rows<T>(rows[l], axis.size(l), p.head_size, factor, tile.queries[l], round_up(axis.size(l), kLanes<T>));
  }
}
template <class S, class T>
void load_child_keys(const HsaHead<S>& head, const Nodes<T>& nodes, const int32_t* children, const LevelAxis& axis,
                     FamilyTile<T>& tile, DenseRows<T>* rows) {
  for (int l = 0; l < head.p.levels; ++l) {
    rows[l] = child_rows<S, T>(head, l, head.k[l], nodes.k[l], nodes.key_width, head.p.head_size, children, axis,
                               tile.k_rows[l]);
  }
}

// A block of a family's pairs: keys j0 .. j0 + nk - 1 against queries i0 .. i0 + nq - 1, both counted in children.
template <class T>
struct FamilyPair {
  int64_t i0, nq, j0, nk, lanes;
  LevelGrid grid;
  DenseRows<T> keys[kMaxLevels];
};
template <class S, class T>
FamilyPair<T> family_pair(const HsaHead<S>& head, const Nodes<T>& nodes, const int32_t* children, int64_t i0,
                          const LevelAxis& queries, int64_t j0, int64_t nk, FamilyTile<T>& tile) {
  const LevelAxis keys = child_axis(children + j0, nk, head.p.levels);
  FamilyPair<T> pair{i0, queries.count, j0, nk, round_up(queries.count, kLanes<T>), {keys, queries}, {}};
  load_child_keys(head, nodes, children + j0, keys, tile, pair.keys);
  return pair;
}

// Scores of a pair of blocks:
//   s sum_l a_l <q_c, k_b> + kappa_b + E(c, b) + log|b|,  f(c) on the diagonal, -inf where a pair does not count.
template <class S, class T>
void family_scores(const HsaHead<S>& head, const Nodes<T>& nodes, int64_t family, const FamilyPair<T>& pair,
                   FamilyTile<T>& tile) {
  const auto& [i0, nq, j0, nk, lanes, grid, keys] = pair;
  const int32_t* children = head.tree.children + head.tree.child_begin[family];
  GemmOperand<T> queries[kMaxLevels];
  for (int l = 0; l < head.p.levels; ++l) queries[l] = {tile.queries[l], grid.template lanes<T>(l)};
  mix_levels<T>(tile.products, grid, head.p.levels, head.p.head_size, keys, queries, tile.scores);
  const T* table = head.table_of(family);
  const bool plain = head.weights.data == nullptr && head.kappa.data == nullptr;
  for (int64_t y = 0; y < nk; ++y) {
    const int32_t child = children[j0 + y];
    T* row = tile.scores[0] + y * lanes;
    if (child < 0 || !plain) {
      const T weight = child < 0 ? nodes.weight[~child] : head.weight_of(child);
      const T kappa = child < 0 ? nodes.kappa[~child] : head.kappa_of(child);
      const T term = weight == T(0) ? -kInfinity<T> : (natural_log(weight) + kappa) * kLog2E<T>;
      for (int64_t x = 0; x < lanes; x += kLanes<T>) store(row + x, load(row + x) + term);
    }
    if (table != nullptr) {
      for (int64_t x = 0; x < nq; ++x) {
        if (i0 + x != j0 + y) row[x] += kLog2E<T> * table[(i0 + x) * head.p.places + j0 + y];
      }
    }
    const int64_t diagonal = j0 + y - i0;
    if (head.p.causal) {
      for (int64_t x = 0; x < min(nq, diagonal); ++x) row[x] = -kInfinity<T>;
    }
    if (child < 0 && diagonal >= 0 && diagonal < nq) row[diagonal] = nodes.f[~child] * kLog2E<T>;
  }
}

// Asks for the rows of a family's tokens at level l, which the products of the family before give time to arrive.
// Memory would be waited for otherwise: its rows are in other pages than those that came last.
template <int kWrite = 0, class S>
[[gnu::always_inline]] inline void prefetch_rows(const TreeView& tree, Rows<S> rows, int64_t channels, int64_t family,
                                                 int l = 0) {
  if (family >= tree.families) return;
  const int32_t begin = tree.child_begin[family], end = min(tree.child_begin[family + 1], begin + kTile);
  int32_t last = -1;
  for (int32_t at = begin; at < end; ++at) {
    if (tree.children[at] < 0 || tree.children[at] >> l == last) continue;
    last = tree.children[at] >> l;
    prefetch_row<kWrite>(rows, last, channels);
  }
}
template <class S>
[[gnu::always_inline]] inline void prefetch_queries(const HsaHead<S>& head, int64_t family) {
  for (int l = 0; l < head.p.levels; ++l) prefetch_rows(head.tree, head.q[l], head.p.head_size, family, l);
}
template <class S>
[[gnu::always_inline]] inline void prefetch_keys(const HsaHead<S>& head, int64_t family) {
  for (int l = 0; l < head.p.levels; ++l) prefetch_rows(head.tree, head.k[l], head.p.head_size, family, l);
}

// |A|, kappa_A and the means of q, k and v, once the children are known.
template <class S, class T>
void family_means(const HsaHead<S>& head, Nodes<T>& nodes, int64_t family, FamilyTile<T>& tile) {
  const HsaProblem& p = head.p;
  const int32_t begin = head.tree.child_begin[family];
  const int64_t size = head.tree.child_begin[family + 1] - begin, kw = nodes.key_width, vw = nodes.value_width;
  const int32_t* children = head.tree.children + begin;
  T total = 0;
  for (int64_t c = 0; c < size; ++c)
    total += children[c] < 0 ? nodes.weight[~children[c]] : head.weight_of(children[c]);
  nodes.weight[family] = total;
  const T inverse = total > T(0) ? T(1) / total : T(0);
  T kappa = 0;
  for (int l = 0; l < p.levels; ++l) {
    memset(nodes.q[l] + family * kw, 0, sizeof(T) * kw);
    memset(nodes.k[l] + family * kw, 0, sizeof(T) * kw);
  }
  if (head.v.data != nullptr) memset(nodes.v + family * vw, 0, sizeof(T) * vw);
  for (int64_t c0 = 0; c0 < size; c0 += kTile) {
    const int64_t count = min(kTile, size - c0);
    const LevelAxis axis = child_axis(children + c0, count, p.levels);
    T share[kTile], row_share[kTile];
    for (int64_t c = 0; c < count; ++c) {
      const int32_t child = children[c0 + c];
      share[c] = (child < 0 ? nodes.weight[~child] : head.weight_of(child)) * inverse;
      if (share[c] > T(0)) kappa += share[c] * (child < 0 ? nodes.kappa[~child] : head.kappa_of(child));
    }
    for (int l = 0; l < p.levels; ++l) {
      const T* shares = axis.sum_shares(l, share, row_share) ? row_share : share;
      const int64_t rows = axis.size(l);
      add_weighted(
          child_rows<S, T>(head, l, head.q[l], nodes.q[l], kw, p.head_size, children + c0, axis, tile.q_rows[l]),
          shares, rows, kw, nodes.q[l] + family * kw);
      add_weighted(
          child_rows<S, T>(head, l, head.k[l], nodes.k[l], kw, p.head_size, children + c0, axis, tile.k_rows[l]),
          shares, rows, kw, nodes.k[l] + family * kw);
    }
    if (head.v.data != nullptr) {
      add_weighted(child_rows<S, T>(head, 0, head.v, nodes.v, vw, p.value_size, children + c0, axis, tile.v_rows),
                   share, count, vw, nodes.v + family * vw);
    }
  }
  nodes.kappa[family] = kappa;
}

}  // namespace strata::STRATA_ISA
