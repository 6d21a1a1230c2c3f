// Streaming attention: keys are tied by a tree, queries are not (docs/MATH.md, sections 2.5 and 3). Strictly causal, so
// safe for autoregressive use, with a cache of O(n b log T) entries for an unbounded stream.
//
// The tree is the left-packed b-ary one: node m of height h covers the b^h tokens from m b^h on, whatever the length.
// Let a_h(i) = floor(i / b^h) be the ancestor of token i at height h, and n = `near`. Token i sees
//
//   height 0:      the leaves j <= i           with floor(j / b) > floor(a_0(i) / b) - n
//   height h > 0:  the nodes m <= a_h(i) - n   with floor(m / b) > floor(a_h(i) / b) - n
//
// which together are the tokens 0 .. i, each once, under one softmax:
//
//   p_m ~ exp(s sum_l a_l <q^(l)_{i >> l}, k^(l)_m> + kappa_m + E_h(families between, place of a_h(i), of m) + log|m|)
//
// Level l has ceil(T / 2^l) rows, as in hkt.h; k^(l)_m, v_m and kappa_m are the weighted means over the tokens of the
// node, |m| the sum of their weights. One level and n = 1 are streaming HSA; n without end is causal HKT.
//
// With `both_sides` a token sees both sides of itself, for encoders without a tree: the leaves j whose family is less
// than n families away, and at height h > 0 the nodes m with |m - a_h(i)| >= n whose family is. The last node of a
// height may be cut short by the end of the sequence.
#pragma once

#include "strata/dropout.h"
#include "strata/export.h"
#include "strata/hkt.h"
#include "strata/status.h"
#include "strata/tensor.h"

namespace strata {

inline constexpr int kMaxBranching = 64;

struct HsaStreamProblem {
  DType dtype = DType::kFloat32;
  int64_t batch = 0;
  int64_t heads = 0;      // query heads
  int64_t key_heads = 0;  // divides heads; query head h reads key head h / (heads / key_heads)
  int64_t tokens = 0;     // of packed sequences, those of the longest
  int branching = 16;     // b: 2 to kMaxBranching
  int near = 1;           // n: families of each height that a token sees, its own included
  bool both_sides = false;
  int levels = 1;  // 1..kMaxLevels
  int head_size = 0;
  int value_size = 0;

  ConstView q[kMaxLevels];              // level l: (batch, heads, ceil(tokens / 2^l), head_size)
  ConstView k[kMaxLevels];              // level l: (batch, key_heads, ceil(tokens / 2^l), head_size)
  ConstView v;                          // (batch, key_heads, tokens, value_size)
  const void* level_weights = nullptr;  // a: (heads, levels), dense, compute type, convex; null with one level: 1
  ConstView weights;                // (batch, 1, tokens, 1), compute type: 0 keeps a token's slot but hides it; null: 1
  ConstView key_bias;               // (batch, key_heads, tokens, 1), compute type: kappa; null: 0
  const void* positions = nullptr;  // E: (heads, heights, distances, b, b), dense, compute type; null: 0
  int64_t heights = 0;              // of that table; heights above it get 0
  Dropout dropout;

  // Packed sequences, each with its own tree: all views have `begins`, lse is (heads, packed_rows).
  const int64_t* lengths = nullptr;  // (batch): tokens of each sequence; null: not packed
  int64_t packed_rows = 0;           // of v, all sequences together

  double scale = 1.0;
  int threads = 0;
};

// Distances between families that a position table covers: 0 .. n - 1 back, with both sides n - 1 ahead .. n - 1 back.
constexpr int64_t hsa_stream_distances(int near, bool both_sides) {
  return both_sides ? 2 * int64_t{near} - 1 : int64_t{near};
}

struct HsaStreamOutputs {
  View out;             // (batch, heads, tokens, value_size)
  void* lse = nullptr;  // (batch, heads, tokens), compute type. sum_i w_i lse_i is this form's score of the hierarchy.
};

struct HsaStreamGradients {
  ConstView dout;
  const void* dlse = nullptr;           // (batch, heads, tokens); null: zero
  View dq[kMaxLevels], dk[kMaxLevels];  // overwritten
  View dv;                              // overwritten
  void* dlevel_weights = nullptr;       // (heads, levels); null: not computed
  View dkey_bias;                       // (batch, key_heads, tokens, 1); null data: not computed
  void* dpositions = nullptr;           // like positions; null: not computed
  View dweights;                        // (batch, key_heads, tokens, 1), not summed over heads; null data: not computed
};

STRATA_API Status hsa_stream_forward(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs);
STRATA_API Status hsa_stream_backward(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs,
                                      const HsaStreamGradients& gradients);
STRATA_API Status hsa_stream_forward_ref(const HsaStreamProblem& problem,
                                         const HsaStreamOutputs& outputs);  // kFloat64 only
STRATA_API Status hsa_stream_backward_ref(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs,
                                          const HsaStreamGradients& gradients);

// The dense (tokens x tokens) attention of one sequence and head, kFloat64 only, before dropout.
STRATA_API Status hsa_stream_materialize(const HsaStreamProblem& problem, int64_t batch, int64_t head,
                                         double* attention);

// A bound, for every row, of its divergence from HKT's attention on the same scores, KL_i = lse_i^HKT - lse_i:
//
//   KL_i <= (s sum_l a_l |q^(l)_i| r^(l)_m + r'_m)^2 / 2      for the node m that the row sees where this is largest
//
// No key of node m is further than r^(l)_m from the node's mean, and no kappa further than r'_m; the radii are carried
// up the tree, so this costs less than the attention. bound: (batch, heads, tokens), compute type. v is not read.
// Position terms belong to nodes, so they have no part in it.
STRATA_API Status hsa_stream_certificate(const HsaStreamProblem& problem, void* bound);

// Heights that a stream of `tokens` tokens reaches: the digits of `tokens` in base b.
STRATA_API int64_t hsa_stream_heights(int64_t tokens, int branching);

// One new token per sequence attends to the cache and is then added to it. At height h the cache is a ring of the nodes
// of the newest n families: node m has slot m mod n b. A node is added when its last token comes, and seen once its
// children no longer are. All arrays are dense and of the compute type.
struct HsaStreamStep {
  DType dtype = DType::kFloat32;  // kFloat32 or kFloat64
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int branching = 16;
  int near = 1;
  int levels = 1;
  int head_size = 0;
  int value_size = 0;
  int64_t capacity = 0;  // heights the cache has room for

  const void* q = nullptr;              // (batch, heads, levels, head_size): rows q^(l)_{i >> l} of the new token i
  const void* k = nullptr;              // (batch, key_heads, levels, head_size)
  const void* v = nullptr;              // (batch, key_heads, value_size)
  const void* level_weights = nullptr;  // (heads, levels); null with one level: 1
  const void* weight = nullptr;         // (batch); null: 1
  const void* key_bias = nullptr;       // (batch, key_heads); null: 0
  const void* positions = nullptr;      // (heads, heights, n, b, b)
  int64_t heights = 0;                  // of the position table
  double scale = 1.0;

  void* keys = nullptr;        // (batch, key_heads, capacity, n b, levels, head_size), updated
  void* values = nullptr;      // (batch, key_heads, capacity, n b, value_size), updated
  void* kappas = nullptr;      // (batch, key_heads, capacity, n b), updated
  void* masses = nullptr;      // (batch, capacity, n b): |m|, updated
  int64_t* lengths = nullptr;  // (batch): tokens seen, updated
  void* out = nullptr;         // (batch, heads, value_size)
};
STRATA_API Status hsa_stream_step(const HsaStreamStep& step);

// How many entries the token after `tokens` tokens sees, itself not counted. With near = 1 these are the digits of
// `tokens` in base b, summed.
STRATA_API int64_t hsa_stream_entries(int64_t tokens, int branching, int near = 1);

// Slots of a cache that hold a node after `tokens` tokens, those not seen yet included.
STRATA_API int64_t hsa_stream_slots(int64_t tokens, int branching, int near = 1);

// What causal streaming attention costs, in score products of one level: token t sees itself and hsa_stream_entries(t).
STRATA_API int64_t hsa_stream_cost(int64_t tokens, int branching, int near = 1);

}  // namespace strata
