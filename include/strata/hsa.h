// HSA attention: the attention closest in KL to softmax among those that respect a tree, in linear time (docs/MATH.md,
// section 2).
//
//   g(c, b) = s <q_c, k_b> + kappa_b + E(c, b) + log|b|       for siblings c != b
//   f(leaf) = s <q_i, k_i> + kappa_i + log w_i                 Z_c = log(exp f(c) + sum_b exp g(c, b))
//   f(A)    = sum_c |c| / |A| Z_c                              bottom-up
//   m(c)    = m(A) exp(f(c) - Z_c)                             top-down, m(root) = 1
//   y_i     = sum over ancestors-or-self c of m(A) sum_b exp(g(c, b) - Z_c) v_b, plus m(i) v_i
//
// q, k, v and kappa of a node are the weighted means over its leaves, |c| the sum of their weights. With several levels
// the same with the products of all of them, sum_l a_l <q^(l)_c, k^(l)_b>, where token t has row t >> l of level l: the
// attention closest to HKT's (hkt.h) on this tree (docs/MATH.md, section 3). The plain form and
// the masked tree (causal: earlier siblings only) tie the rows of a node to its mean query, which sees later tokens of
// the same node: right for encoders, NOT safe for autoregressive use. Use the streaming form for that (hsa_stream.h).
#pragma once

#include "strata/export.h"
#include "strata/hkt.h"
#include "strata/status.h"
#include "strata/tensor.h"
#include "strata/tree.h"

namespace strata {

struct HsaProblem {
  DType dtype = DType::kFloat32;  // of q, k, v, out and their gradients; everything else is in the compute type
  int64_t sequences = 0;
  int64_t heads = 0;      // query heads
  int64_t key_heads = 0;  // divides heads; query head h reads key head h / (heads / key_heads)
  int levels = 1;         // 1..kMaxLevels
  int head_size = 0;
  int value_size = 0;

  // Sequence n is tree trees[n] over the rows first_token[n] .. + tokens - 1 of batch batch_of[n] of the views below. A
  // padded batch has first_token = 0, a packed one batch_of = 0.
  const TreeView* trees = nullptr;
  const int64_t* batch_of = nullptr;
  const int64_t* first_token = nullptr;
  const int64_t* first_row[kMaxLevels] =
      {};  // likewise for the rows of level l >= 1: sequence n has ceil(tokens / 2^l)

  ConstView q[kMaxLevels];  // level l: (batch, heads, rows, head_size)
  ConstView k[kMaxLevels];  // level l: (batch, key_heads, rows, head_size)
  ConstView v;              // (batch, key_heads, tokens, value_size); null: hsa_forward computes the score alone
  const void* level_weights = nullptr;  // a: (heads, levels), dense, compute type, convex; null with one level: 1
  ConstView weights;                    // (batch, 1, tokens, 1): leaf weights >= 0; null: 1
  ConstView key_bias;                   // (batch, key_heads, tokens, 1): kappa of the leaves; null: 0
  const void* positions = nullptr;      // E: (heads, kinds, places, places), dense; the diagonal is not read; null: 0
  int64_t kinds = 0;
  int64_t places = 0;
  bool causal = false;  // masked tree: only earlier siblings count
  double scale = 1.0;
  int threads = 0;
};

struct HsaOutputs {
  View out;               // (batch, heads, tokens, value_size); rows outside all sequences are not written
  void* score = nullptr;  // (sequences, heads), compute type: f(root)
};

struct HsaGradients {
  ConstView dout;
  const void* dscore = nullptr;  // (sequences, heads); null: zero

  View dq[kMaxLevels], dk[kMaxLevels], dv;  // overwritten on the rows of the sequences
  void* dlevel_weights = nullptr;           // (heads, levels); null: not computed
  View dweights;   // (batch, key_heads, tokens, 1), per key head; null data: not computed. 0 where a weight is 0.
  View dkey_bias;  // (batch, key_heads, tokens, 1); null data: not computed
  void* dpositions = nullptr;  // (heads, kinds, places, places); null: not computed
};

STRATA_API Status hsa_forward(const HsaProblem& problem, const HsaOutputs& outputs);
STRATA_API Status hsa_backward(const HsaProblem& problem, const HsaGradients& gradients);

// The definition: plain loops, kFloat64 only.
STRATA_API Status hsa_forward_ref(const HsaProblem& problem, const HsaOutputs& outputs);
STRATA_API Status hsa_backward_ref(const HsaProblem& problem, const HsaGradients& gradients);

// The dense (tokens x tokens) attention of one sequence and head, kFloat64 only.
STRATA_API Status hsa_materialize(const HsaProblem& problem, int64_t sequence, int64_t head, double* attention);

}  // namespace strata
