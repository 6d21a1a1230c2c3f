// HKT attention: scores at several resolutions, mixed by convex weights under one softmax (docs/MATH.md, section 1).
//
//   S_ij = scale * sum_l a_{h,l} <q^(l)_{i >> l}, k^(l)_{j >> l}> + bias_ij - slope_h |i - j|
//   o_i = sum_j softmax_j(S_ij) v_j
//
// Level l has T_l = ceil(T / 2^l) rows. The causal mask (j <= i), the window (i - left <= j <= i + right) and the
// lengths count level-0 tokens. A row without a visible key gives o = 0, lse = -inf and zero gradients. One level is
// ordinary ("flat") attention. Keys may belong to another sequence than the queries (cross-attention): both sides then
// have their own tokens, lengths and pyramid, and i and j count from the start of each.
#pragma once

#include "strata/dropout.h"
#include "strata/export.h"
#include "strata/status.h"
#include "strata/tensor.h"

namespace strata {

inline constexpr int kMaxLevels = 8;
inline constexpr int kMaxHeadSize = 256;

// Rows of level l: ceil(tokens / 2^level).
constexpr int64_t hkt_level_tokens(int64_t tokens, int level) { return (tokens + (int64_t{1} << level) - 1) >> level; }

// What attention without a mask costs, in score products: the sum over levels of T_l^2.
constexpr int64_t hkt_cost(int64_t tokens, int levels) {
  int64_t products = 0;
  for (int l = 0; l < levels; ++l) products += hkt_level_tokens(tokens, l) * hkt_level_tokens(tokens, l);
  return products;
}

// The inputs of one call. "Compute type" is double for kFloat64 and float otherwise.
struct HktProblem {
  DType dtype = DType::kFloat32;  // of q, k, v, bias, out and their gradients
  int64_t batch = 0;
  int64_t heads = 0;        // query heads
  int64_t key_heads = 0;    // divides heads; query head h reads key head h / (heads / key_heads)
  int64_t tokens = 0;       // level-0 rows of q, padding included; of packed sequences, the rows of the longest
  int64_t key_tokens = -1;  // the same of k and v; negative: self-attention, with the tokens and lengths of q
  int levels = 1;           // 1..kMaxLevels
  int head_size = 0;        // channels of q and k, 1..kMaxHeadSize
  int value_size = 0;       // channels of v and out, 1..kMaxHeadSize

  ConstView q[kMaxLevels];               // level l: (batch, heads, T_l, head_size)
  ConstView k[kMaxLevels];               // level l: (batch, key_heads, T_l of the keys, head_size)
  ConstView v;                           // (batch, key_heads, key_tokens, value_size)
  const void* weights = nullptr;         // a: (heads, levels), dense, compute type, finite
  const int64_t* lengths = nullptr;      // (batch): real tokens of each sequence; null: all of them
  const int64_t* key_lengths = nullptr;  // the same of the keys, with key_tokens
  ConstView bias;                        // (batch, heads, tokens, key_tokens), added after the scale; null data: none
  const void* slopes = nullptr;          // ALiBi: (heads), dense, compute type, finite; null: none
  bool causal = false;
  int64_t window_left = -1, window_right = -1;  // negative: without end
  Dropout dropout;

  // Packed sequences: all views but the bias have `begins`, lengths are given, lse is (heads, packed_rows).
  int64_t packed_rows = 0;      // of q[0] and out, all sequences together; 0: not packed
  int64_t packed_key_rows = 0;  // of v, with key_tokens

  double scale = 1.0;  // usually 1 / sqrt(head_size)
  int threads = 0;     // 0: as many as OpenMP would use
};

struct HktOutputs {
  View out;             // (batch, heads, tokens, value_size)
  void* lse = nullptr;  // (batch, heads, tokens), dense, compute type: natural log of the row's sum of exp(S)
};

struct HktGradients {
  ConstView dout;              // gradient of out
  const void* dlse = nullptr;  // gradient of lse, dense, compute type; null: zero

  View dq[kMaxLevels];  // all gradients below are overwritten, never added to
  View dk[kMaxLevels];
  View dv;
  void* dweights = nullptr;  // (heads, levels), dense, compute type
  View dbias;  // null data: not computed. A batch or head stride of 0 sums over that axis, in a fixed order.
};

// One new token per sequence against cached keys: the token at lengths - 1 attends to those before it and to itself.
// Rows may lie in rings: row r of an array has slot r mod its number of slots.
struct HktDecode {
  DType dtype = DType::kFloat32;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int levels = 1;
  int head_size = 0;
  int value_size = 0;

  ConstView q[kMaxLevels];               // (batch, heads, query_slots, head_size): row (lengths - 1) >> l is read
  ConstView k[kMaxLevels];               // (batch, key_heads, key_slots, head_size)
  ConstView v;                           // (batch, key_heads, value_slots, value_size)
  int64_t query_slots[kMaxLevels] = {};  // 0: one
  int64_t key_slots[kMaxLevels] = {};    // at least the rows of visible tokens; 0: enough for lengths, unknown here
  int64_t value_slots = 0;               // the same of v
  int64_t window = -1;                   // how many tokens before the new one are visible; negative: all
  const void* weights = nullptr;         // (heads, levels), dense, compute type
  const int64_t* lengths = nullptr;      // (batch): tokens to attend to, the new one included; required
  double scale = 1.0;
  int threads = 0;

  View out;  // (batch, heads, 1, value_size)
};

// The rows that a new token adds to such a cache: row lengths >> l of level l, where lengths is a multiple of 2^l, and
// row `lengths` of the values.
struct HktAppend {
  DType dtype = DType::kFloat32;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int levels = 1;
  int head_size = 0;
  int value_size = 0;

  ConstView q[kMaxLevels];   // (batch, heads, 1, head_size); not read where no row of the level begins
  ConstView k[kMaxLevels];   // (batch, key_heads, 1, head_size); likewise
  ConstView v;               // (batch, key_heads, 1, value_size); null data: the cache has no values
  View queries[kMaxLevels];  // as in HktDecode, all with their slots
  View keys[kMaxLevels];
  View values;
  int64_t query_slots[kMaxLevels] = {}, key_slots[kMaxLevels] = {};
  int64_t value_slots = 0;
  const int64_t* lengths = nullptr;  // (batch): tokens before the new one

  // If given, they receive row lengths >> l of every level, new or not: (batch, heads or key_heads, levels, head_size).
  void* current_q = nullptr;
  void* current_k = nullptr;
};

// The fused kernels: no T x T buffer, every coarse score computed once per tile, the same bits at any thread count.
STRATA_API Status hkt_forward(const HktProblem& problem, const HktOutputs& outputs);
STRATA_API Status hkt_backward(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& gradients);
STRATA_API Status hkt_decode(const HktDecode& decode);
STRATA_API Status hkt_append(const HktAppend& append);

// The definition: plain loops, kFloat64 only, any size. Slow, for tests and inspection.
STRATA_API Status hkt_forward_ref(const HktProblem& problem, const HktOutputs& outputs);
STRATA_API Status hkt_backward_ref(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& gradients);

// The dense (tokens x key_tokens) matrices of one sequence and head, kFloat64 only, before dropout; masked scores are
// -inf. `scores` and `attention` may be null.
STRATA_API Status hkt_materialize(const HktProblem& problem, int64_t batch, int64_t head, double* scores,
                                  double* attention);

}  // namespace strata
