// What the forward and the backward pass share: a tile of kTile queries against a tile of kTile keys.
//
// Tiles are stored transposed, S[j][i]: a vector holds one key against consecutive queries. The softmax then runs down
// the rows without any horizontal step, and keys and values are broadcast from their place in memory, unpacked.
#pragma once

#include "base/hkt_rows.h"
#include "cpu/gemm.h"
#include "cpu/storage.h"
#include "strata/hkt.h"

namespace strata::STRATA_ISA {

constexpr int64_t kTile = 64;

// Queries of a tile at level l, padded to whole vectors. At least one: a block of 2^l tokens may span several tiles.
template <class T>
constexpr int64_t level_lanes(int l) {
  return round_up((kTile >> l) > 0 ? kTile >> l : 1, kLanes<T>);
}
// hkt_level_tokens() of strata/hkt.h, which these files must not call (cpu/simd.h).
inline int64_t level_rows(int64_t n, int l) { return (n + (int64_t{1} << l) - 1) >> l; }

// Distributes one allocation; with a null base it only counts the bytes.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    T* taken = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return taken;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// One sequence and one query head.
template <class S>
struct Head {
  using T = typename Compute<S>::Type;

  Head(const HktProblem& problem, int64_t batch, int64_t query_head) : p(problem), b(batch), h(query_head) {
    const int64_t key_head = h / (p.heads / p.key_heads);
    length = length_of(query_side(p), b);
    key_length = length_of(key_side(p), b);
    rows = stored_rows(query_side(p), b);
    line = hkt_line(p, b, h);
    weights = static_cast<const T*>(p.weights) + h * p.levels;
    for (int l = 0; l < p.levels; ++l) {
      q[l] = rows_of<S>(p.q[l], b, h);
      k[l] = rows_of<S>(p.k[l], b, key_head);
    }
    v = rows_of<S>(p.v, b, key_head);
    has_bias = p.bias.data != nullptr;
    if (has_bias) bias = rows_of<S>(p.bias, b, h);
    slope = p.slopes == nullptr ? T(0) : static_cast<const T*>(p.slopes)[h];
  }

  // Queries of the tile that starts at i0 that are not padding.
  int64_t queries(int64_t i0) const { return min(kTile, length - i0); }
  // The keys that the queries of the tile that starts at i0 see, from the start of a tile on.
  HktRange key_range(int64_t i0) const {
    const HktRange range = keys_of_queries(p, i0, i0 + queries(i0) - 1, key_length);
    return {range.begin / kTile * kTile, range.end};
  }
  // Whether some query of the tile does not see some key of j0 .. j0 + n - 1.
  bool is_masked(int64_t i0, int64_t j0, int64_t n) const {
    return has_bias || j0 + n - 1 > i0 + p.window_right || j0 < i0 + kTile - 1 - p.window_left;
  }

  const HktProblem& p;
  int64_t b, h;
  int64_t length, key_length;
  int64_t rows;  // of the queries in memory, padding included
  int64_t line;  // where lse begins
  const T* weights;
  Rows<const S> q[kMaxLevels];
  Rows<const S> k[kMaxLevels];
  Rows<const S> v;
  bool has_bias;
  Rows<const S> bias;
  T slope;
};

// Work space for the scores of one tile.
template <class T>
struct ScoreTile {
  explicit ScoreTile(const HktProblem& p, Arena& arena) {
    for (int l = 0; l < p.levels; ++l) {
      queries[l] = arena.take<T>(p.head_size * level_lanes<T>(l));
      scores[l] = arena.take<T>(level_rows(kTile, l) * level_lanes<T>(l));
      key_scratch[l] = arena.take<T>(level_rows(kTile, l) * p.head_size);
    }
    value_scratch = arena.take<T>(kTile * p.value_size);
    allowed = arena.take<uint8_t>(kTile * kTile);
  }

  T* queries[kMaxLevels];  // (head_size, lanes) of level l, times scale * a_l * log2(e)
  T* scores[kMaxLevels];   // (rows, lanes): the mix of the levels from l up; scores[0] is S in units of log 2
  T* key_scratch[kMaxLevels];
  T* value_scratch;
  uint8_t* allowed;  // (key, query) pairs that are not masked; filled only if `careful`

  // Of the current key tile:
  DenseRows<T> keys[kMaxLevels];
  DenseRows<T> values;
  // Whether the tile holds masked pairs and an infinite or NaN operand. Then 0 * NaN must not reach the real rows, and
  // the products are taken pair by pair.
  bool careful;
};

template <class S, class T>
void pack_queries(const Head<S>& head, int64_t i0, ScoreTile<T>& tile) {
  for (int l = 0; l < head.p.levels; ++l) {
    const T factor = static_cast<T>(head.p.scale) * head.weights[l] * kLog2E<T>;
    const int64_t count = level_rows(head.queries(i0), l);
    pack_transposed<S, T>(head.q[l], i0 >> l, count, head.p.head_size, factor, tile.queries[l], level_lanes<T>(l));
  }
}

template <class S, class T>
void add_bias(const Head<S>& head, int64_t i0, int64_t j0, int64_t n, T* scores) {
  const int64_t queries = head.queries(i0);
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < n; ++j) scores[j * kTile + i] += kLog2E<T> * widen(head.bias.at(i0 + i, j0 + j));
  }
}

// Where bias is -inf the score must be -inf even when the product is NaN, so it is assigned rather than added.
template <class S, class T>
void assign_bias_mask(const Head<S>& head, int64_t i0, int64_t j0, int64_t n, T* scores) {
  const int64_t queries = head.queries(i0);
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      if (widen(head.bias.at(i0 + i, j0 + j)) == -kInfinity<T>) scores[j * kTile + i] = -kInfinity<T>;
    }
  }
}

// S_ij -= slope |i - j|, in units of log 2.
template <class T>
void add_alibi(T slope, int64_t i0, int64_t j0, int64_t n, T* scores) {
  const Vec<T> factor = splat(-slope * kLog2E<T>);
  for (int64_t j = 0; j < n; ++j) {
    const T first = static_cast<T>(i0 - (j0 + j));  // exact: a difference of tokens
    for (int64_t x = 0; x < kTile; x += kLanes<T>) {
      const Vec<T> ahead = lane_index<T>() + (static_cast<T>(x) + first);
      T* at = scores + j * kTile + x;
      store(at, load(at) + factor * (ahead < splat(T(0)) ? -ahead : ahead));
    }
  }
}

// Key j0 + j is seen by queries j0 + j - right .. j0 + j + left.
template <class T>
void assign_window_mask(const HktProblem& p, int64_t i0, int64_t j0, int64_t n, T* scores) {
  for (int64_t j = 0; j < n; ++j) {
    // Indices from 0 to 64 are exact in every T.
    const T low = static_cast<T>(min(kTile, max(0, j0 + j - p.window_right - i0)));
    const T high = static_cast<T>(min(kTile, max(-1, j0 + j + p.window_left - i0)));
    for (int64_t x = 0; x < kTile; x += kLanes<T>) {
      const Vec<T> query = lane_index<T>() + static_cast<T>(x);
      T* at = scores + j * kTile + x;
      const Vec<T> seen_from = query < splat(low) ? splat(-kInfinity<T>) : load(at);
      store(at, query > splat(high) ? splat(-kInfinity<T>) : seen_from);
    }
  }
}

// What the scores of a tile get beside the products. Returns whether the tile has masked pairs.
template <class S, class T>
bool add_terms(const Head<S>& head, int64_t i0, int64_t j0, int64_t n, T* scores) {
  const bool masked = head.is_masked(i0, j0, n);
  if (head.slope != T(0)) add_alibi<T>(head.slope, i0, j0, n, scores);
  if (head.has_bias) {
    add_bias<S, T>(head, i0, j0, n, scores);
    assign_bias_mask<S, T>(head, i0, j0, n, scores);
  }
  if (masked) assign_window_mask<T>(head.p, i0, j0, n, scores);
  return masked;
}

// S for the keys j0 .. j0 + n, coarsest level first: each level starts from the up-sampled mix of the levels above it,
// so a coarse product is computed once and reused by its 2^l x 2^l fine pairs.
template <class S, class T>
void score_tile(const Head<S>& head, int64_t i0, int64_t j0, int64_t n, ScoreTile<T>& tile) {
  const int top = head.p.levels - 1;
  const int64_t depth = head.p.head_size;
  for (int l = top; l >= 0; --l) {
    const int64_t rows = level_rows(n, l);
    const int64_t lanes = level_lanes<T>(l);
    tile.keys[l] = dense_rows<S, T>(head.k[l], j0 >> l, rows, depth, tile.key_scratch[l]);
    const GemmOperand<T> a{tile.keys[l].data, tile.keys[l].step};
    const GemmOperand<T> b{tile.queries[l], lanes};
    const int64_t vectors = lanes / kLanes<T>;
    if (l == top) {
      gemm<T, Layout::kRowMajor>(a, b, tile.scores[l], lanes, rows, vectors, depth, StartZero<T>());
    } else {
      const StartUpsampled<T> start{tile.scores[l + 1], level_lanes<T>(l + 1)};
      gemm<T, Layout::kRowMajor>(a, b, tile.scores[l], lanes, rows, vectors, depth, start);
    }
  }
  tile.values = dense_rows<S, T>(head.v, j0, n, head.p.value_size, tile.value_scratch);

  const bool masked = add_terms<S, T>(head, i0, j0, n, tile.scores[0]);

  tile.careful = false;
  if (masked) {
    tile.careful = any_non_finite(tile.values, n, head.p.value_size);
    for (int l = 0; l <= top; ++l) {
      tile.careful |= any_non_finite(tile.keys[l], level_rows(n, l), depth);
    }
  }
}

// Must be called before the scores are turned into probabilities.
template <class T>
void note_allowed(const T* scores, int64_t n, uint8_t* allowed) {
  for (int64_t at = 0; at < n * kTile; ++at) allowed[at] = scores[at] != -kInfinity<T>;
}

// C[c][i] += sum_j A[j][c] B[j][i] over the allowed pairs: the careful form of a product whose sum runs over keys.
template <class T>
void careful_sum_over_keys(DenseRows<T> a, const T* b, const uint8_t* allowed, int64_t keys, int64_t channels,
                           int64_t lanes, T* c) {
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t ch = 0; ch < channels; ++ch) {
      for (int64_t i = 0; i < lanes; ++i) {
        if (allowed[j * lanes + i] != 0) c[ch * lanes + i] += a.data[j * a.step + ch] * b[j * lanes + i];
      }
    }
  }
}

}  // namespace strata::STRATA_ISA
