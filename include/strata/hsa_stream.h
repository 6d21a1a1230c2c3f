// Streaming HSA: keys are tied by the tree, queries are not. Strictly causal, so safe for autoregressive use, with a
// cache of O(b log T) entries for an unbounded stream (docs/MATH.md, section 2.5).
//
// The tree is the left-packed b-ary one: a node of height h covers b^h tokens from a multiple of b^h on, whatever the
// length. Token i sees itself and, at every height, the earlier siblings n of its ancestor (all of them complete):
//
//   p_n ~ exp(s <q_i, k_n> + kappa_n + E_h(place of the ancestor, place of n) + log|n|)
//
// under one softmax over all of these nodes.
#pragma once

#include "strata/export.h"
#include "strata/status.h"
#include "strata/tensor.h"

namespace strata {

inline constexpr int kMaxBranching = 64;

struct HsaStreamProblem {
  DType dtype = DType::kFloat32;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t tokens = 0;
  int branching = 16;  // b: 2 to kMaxBranching
  int head_size = 0;
  int value_size = 0;

  ConstView q, k, v;                // (batch, heads, tokens, channels)
  ConstView weights;                // (batch, 1, tokens, 1), compute type: 0 keeps a token's slot but hides it; null: 1
  ConstView key_bias;               // (batch, heads, tokens, 1), compute type: kappa; null: 0
  const void* positions = nullptr;  // E: (heads, heights, b, b), dense, compute type; heights above the table get 0
  int64_t heights = 0;
  double scale = 1.0;
  int threads = 0;
};

struct HsaStreamOutputs {
  View out;             // (batch, heads, tokens, value_size)
  void* lse = nullptr;  // (batch, heads, tokens), compute type. sum_i w_i lse_i is this form's score of the hierarchy.
};

struct HsaStreamGradients {
  ConstView dout;
  const void* dlse = nullptr;  // (batch, heads, tokens); null: zero
  View dq, dk, dv;             // overwritten
  View dkey_bias;              // (batch, heads, tokens, 1); null data: not computed
  void* dpositions = nullptr;  // like positions; null: not computed
  View dweights;               // (batch, heads, tokens, 1), not summed over heads; null data: not computed
};

STRATA_API Status hsa_stream_forward(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs);
STRATA_API Status hsa_stream_backward(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs,
                                      const HsaStreamGradients& gradients);
STRATA_API Status hsa_stream_forward_ref(const HsaStreamProblem& problem,
                                         const HsaStreamOutputs& outputs);  // kFloat64 only
STRATA_API Status hsa_stream_backward_ref(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs,
                                          const HsaStreamGradients& gradients);

// Heights that a stream of `tokens` tokens reaches: the digits of `tokens` in base b.
STRATA_API int64_t hsa_stream_heights(int64_t tokens, int branching);

// One new token per sequence attends to the cache and is then added to it. At height h the cache holds the complete
// siblings of the newest token's ancestor; their number is digit h of the length in base b. All arrays are dense and of
// the compute type.
struct HsaStreamStep {
  DType dtype = DType::kFloat32;  // kFloat32 or kFloat64
  int64_t batch = 0;
  int64_t heads = 0;
  int branching = 16;
  int head_size = 0;
  int value_size = 0;
  int64_t capacity = 0;  // heights the cache has room for

  const void* q = nullptr;         // (batch, heads, head_size)
  const void* k = nullptr;         // (batch, heads, head_size)
  const void* v = nullptr;         // (batch, heads, value_size)
  const void* weight = nullptr;    // (batch); null: 1
  const void* key_bias = nullptr;  // (batch, heads); null: 0
  const void* positions = nullptr;
  int64_t heights = 0;  // of the position table
  double scale = 1.0;

  void* keys = nullptr;        // (batch, heads, capacity, b, head_size), updated
  void* values = nullptr;      // (batch, heads, capacity, b, value_size), updated
  void* kappas = nullptr;      // (batch, heads, capacity, b), updated
  void* masses = nullptr;      // (batch, capacity, b): |n|, updated
  int64_t* lengths = nullptr;  // (batch): tokens seen, updated
  void* out = nullptr;         // (batch, heads, value_size)
};
STRATA_API Status hsa_stream_step(const HsaStreamStep& step);

// How many entries a cache holds after `tokens` tokens: the sum of the digits of `tokens` in base b.
STRATA_API int64_t hsa_stream_entries(int64_t tokens, int branching);

// What streaming attention costs, in score products: token t sees itself and hsa_stream_entries(t) entries.
STRATA_API int64_t hsa_stream_cost(int64_t tokens, int branching);

}  // namespace strata
