// What the HSA passes share: one sequence and head, the means of its nodes, and the scores of a family, tile by tile.
//
// As in hkt_tile.h, score tiles are transposed, S[b][c]: a row is one sibling b against the children c of the tile. A
// family of up to kTile children is a single tile; a larger one is processed tile by tile with an online softmax, so a
// star costs what flat attention costs.
#pragma once

#include "cpu/gemm.h"
#include "cpu/hkt_tile.h"
#include "cpu/parallel.h"
#include "cpu/softmax.h"
#include "strata/hsa.h"

namespace strata::STRATA_ISA {

// The leaves of one sequence and head.
template <class S>
struct HsaHead {
  using T = typename Compute<S>::Type;

  HsaHead(const HsaProblem& problem, int64_t n_, int64_t h_) : p(problem), tree(problem.trees[n_]), n(n_), h(h_) {
    q = leaves<const S>(p.q);
    k = leaves<const S>(p.k);
    if (p.v.data != nullptr) v = leaves<const S>(p.v);
    if (p.weights.data != nullptr) weights = leaves<const T>(p.weights, 0);
    if (p.key_bias.data != nullptr) kappa = leaves<const T>(p.key_bias);
    if (p.positions != nullptr) positions = static_cast<const T*>(p.positions) + h * p.kinds * p.places * p.places;
  }

  template <class Element, class AnyView>
  Rows<Element> leaves(const AnyView& view, int64_t head = -1) const {
    return {static_cast<Element*>(view.data) + p.batch_of[n] * view.stride[0] + (head < 0 ? h : head) * view.stride[1] +
                p.first_token[n] * view.stride[2],
            view.stride[2], view.stride[3]};
  }

  T weight_of(int64_t t) const { return weights.data == nullptr ? T(1) : weights.at(t, 0); }
  T kappa_of(int64_t t) const { return kappa.data == nullptr ? T(0) : kappa.at(t, 0); }
  // The position table of a family, or null.
  const T* table_of(int64_t family) const {
    const bool none = positions == nullptr || tree.kind[family] < 0;
    return none ? nullptr : positions + tree.kind[family] * p.places * p.places;
  }

  const HsaProblem& p;
  const TreeView& tree;
  int64_t n, h;
  Rows<const S> q{}, k{}, v{};
  Rows<const T> weights{}, kappa{};
  const T* positions = nullptr;
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
        q(arena.take<T>(families * key_width)),
        k(arena.take<T>(families * key_width)),
        v(arena.take<T>(families * value_width)) {}

  int64_t key_width, value_width;
  T *weight, *kappa, *f, *Z, *m;  // Z belongs to the node's own row among its siblings
  T *q, *k, *v;
};

template <class T>
struct FamilyTile {
  FamilyTile(const HsaProblem& p, Arena& arena)
      : key_width(round_up(p.head_size, kLanes<T>)),
        value_width(round_up(p.value_size, kLanes<T>)),
        queries(arena.take<T>(p.head_size * kTile)),
        scores(arena.take<T>(kTile * kTile)),
        q_rows(arena.take<T>(kTile * key_width)),
        k_rows(arena.take<T>(kTile * key_width)),
        v_rows(arena.take<T>(kTile * value_width)),
        peak(arena.take<T>(kTile)),
        sum(arena.take<T>(kTile)),
        factor(arena.take<T>(kTile)) {}

  int64_t key_width, value_width;
  T* queries;                   // (head_size, lanes), times scale * log2(e)
  T* scores;                    // (siblings, lanes), in units of log 2
  T *q_rows, *k_rows, *v_rows;  // scratch for rows that cannot be read in place
  T *peak, *sum, *factor;       // of the online softmax, per lane
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

// The rows of consecutive children as dense T, each padded to whole vectors: in place if they are stored so, else
// gathered into scratch. Rows of tokens of weight 0 are zeros, whatever the token holds.
template <class S, class T>
inline DenseRows<T> child_rows(const HsaHead<S>& head, Rows<const S> leaf, const T* node, int64_t width,
                               int64_t channels, const int32_t* children, int64_t count, T* scratch) {
  if (all_families(children, count)) return {node + ~children[0] * width, width};  // neighbours in breadth-first order
  if constexpr (sizeof(S) == sizeof(T)) {
    if (leaf.channel_stride == 1 && channels == width && head.weights.data == nullptr && all_tokens(children, count)) {
      return {&leaf.at(children[0], 0), leaf.token_stride};
    }
  }
  for (int64_t c = 0; c < count; ++c) {
    T* row = scratch + c * width;
    if (children[c] < 0) {
      memcpy(row, node + ~children[c] * width, sizeof(T) * width);
    } else {
      const bool real = head.weight_of(children[c]) != T(0);
      pack_rows<S, T>(leaf, children[c], real ? 1 : 0, channels, T(1), row, 1, width);
    }
  }
  return {scratch, width};
}

// Scores of the keys j0 .. j0 + nk against the queries i0 .. i0 + nq of a family, both counted in children:
//   s <q_c, k_b> + kappa_b + E(c, b) + log|b|,  f(c) on the diagonal, -inf where a pair does not count.
template <class S, class T>
void family_scores(const HsaHead<S>& head, const Nodes<T>& nodes, int64_t family, int64_t i0, int64_t nq, int64_t j0,
                   int64_t nk, int64_t lanes, DenseRows<T> keys, FamilyTile<T>& tile) {
  const int32_t* children = head.tree.children + head.tree.child_begin[family];
  gemm<T, Layout::kRowMajor>({keys.data, keys.step}, {tile.queries, lanes}, tile.scores, lanes, nk, lanes / kLanes<T>,
                             head.p.head_size, StartZero<T>());
  const T* table = head.table_of(family);
  const bool plain = head.weights.data == nullptr && head.kappa.data == nullptr;
  for (int64_t y = 0; y < nk; ++y) {
    const int32_t child = children[j0 + y];
    T* row = tile.scores + y * lanes;
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

// |A|, kappa_A and the means of q, k and v, once the children are known.
template <class S, class T>
void family_means(const HsaHead<S>& head, Nodes<T>& nodes, int64_t family, FamilyTile<T>& tile) {
  const int32_t begin = head.tree.child_begin[family];
  const int64_t size = head.tree.child_begin[family + 1] - begin;
  const int32_t* children = head.tree.children + begin;
  T total = 0;
  for (int64_t c = 0; c < size; ++c)
    total += children[c] < 0 ? nodes.weight[~children[c]] : head.weight_of(children[c]);
  nodes.weight[family] = total;
  const T inverse = total > T(0) ? T(1) / total : T(0);
  T kappa = 0;
  T* means[3] = {nodes.q + family * nodes.key_width, nodes.k + family * nodes.key_width,
                 nodes.v + family * nodes.value_width};
  const int64_t widths[3] = {nodes.key_width, nodes.key_width, nodes.value_width};
  const T* sources[3] = {nodes.q, nodes.k, nodes.v};
  const Rows<const S> leaves[3] = {head.q, head.k, head.v};
  const int64_t channels[3] = {head.p.head_size, head.p.head_size, head.p.value_size};
  T* scratch[3] = {tile.q_rows, tile.k_rows, tile.v_rows};
  const int vectors = head.v.data == nullptr ? 2 : 3;
  for (int which = 0; which < vectors; ++which) memset(means[which], 0, sizeof(T) * widths[which]);
  for (int64_t c0 = 0; c0 < size; c0 += kTile) {
    const int64_t count = min(kTile, size - c0);
    T share[kTile];
    for (int64_t c = 0; c < count; ++c) {
      const int32_t child = children[c0 + c];
      share[c] = (child < 0 ? nodes.weight[~child] : head.weight_of(child)) * inverse;
      if (share[c] > T(0)) kappa += share[c] * (child < 0 ? nodes.kappa[~child] : head.kappa_of(child));
    }
    for (int which = 0; which < vectors; ++which) {
      const DenseRows<T> rows = child_rows<S, T>(head, leaves[which], sources[which], widths[which], channels[which],
                                                 children + c0, count, scratch[which]);
      for (int64_t x = 0; x < widths[which]; x += kLanes<T>) {
        Vec<T> sum = load(means[which] + x);
        for (int64_t c = 0; c < count; ++c) sum += load(rows.data + c * rows.step + x) * share[c];
        store(means[which] + x, sum);
      }
    }
  }
  nodes.kappa[family] = kappa;
}

}  // namespace strata::STRATA_ISA
