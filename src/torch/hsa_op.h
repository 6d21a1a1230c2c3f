// HSA attention as torch operators. In Python they are torch.ops.strata.hsa_attention and so on.
#pragma once

#include <torch/torch.h>

#include <tuple>
#include <vector>

#include "strata/export.h"
#include "strata/tree.h"

namespace strata {

// A tree as one int32 tensor, [tokens, families, child_begin.., children.., kind..], which the operators read without a
// copy. Create it once and reuse it. The trees of a batch may follow each other in one tensor.
STRATA_API at::Tensor encode_tree(const Tree& tree);

// Score products (sum over families of children^2) of all trees in a tensor.
int64_t trees_cost(const at::Tensor& encoded);

struct HsaOptions {
  c10::optional<at::Tensor> weights = c10::nullopt;        // (B, T): leaf weights >= 0, 0 is padding
  c10::optional<at::Tensor> key_bias = c10::nullopt;       // (B, Hk, T): added to the scores of a key, averaged like k
  c10::optional<at::Tensor> positions = c10::nullopt;      // (H, kinds, places, places): E; the diagonal is not used
  c10::optional<at::Tensor> level_weights = c10::nullopt;  // (H, levels): convex; needed for several levels
  bool causal = false;  // masked tree: NOT safe for autoregressive use, see hsa_stream_attention
  c10::optional<double> scale = c10::nullopt;
};

// q: (B, H, T, d), k: (B, Hk, T, d), v: (B, Hk, T, dv), Hk a divisor of H; with several levels q and k are lists, level
// l of ceil(T / 2^l) rows. One tree per sequence. With B trees, in B tensors or in one, the batch is padded: tree n
// covers the first tokens of sequence n, the rest of its rows are zero. With B = 1 and several trees it is packed: the
// trees follow each other and cover all T tokens, and so do the rows of every level. Returns out (B, H, T, dv) and
// score (trees, H) = f(root); both are differentiable, once.
STRATA_API std::tuple<at::Tensor, at::Tensor> hsa_attention(at::TensorList q, at::TensorList k, const at::Tensor& v,
                                                            at::TensorList trees, const HsaOptions& options = {});

// f(root) per tree and head, (trees, H), in O(T) and without values: of two trees of the same tokens the one with the
// larger score is closer to softmax in sum w KL. Differentiable, once.
STRATA_API at::Tensor hierarchy_score(at::TensorList q, at::TensorList k, at::TensorList trees,
                                      const HsaOptions& options = {});

// sum_i w_i KL(HSA_i || softmax_i), (B, H), exactly: from flat attention's lse (B, H, T) and the score (B, H) of one
// tree per sequence.
STRATA_API at::Tensor kl_gap(const at::Tensor& lse, const at::Tensor& score,
                             const c10::optional<at::Tensor>& weights = c10::nullopt);

// The candidate with the largest score, summed over heads, that is, with the smallest KL gap; q, k: (1, H, T, d). Only
// trees of at most max_cost score products (sum over families of children^2) are considered, if it is given.
struct TreeChoice {
  int64_t index;
  at::Tensor scores;  // one per candidate
};
STRATA_API TreeChoice best_tree(at::TensorList q, at::TensorList k, at::TensorList candidates,
                                const HsaOptions& options = {}, c10::optional<int64_t> max_cost = c10::nullopt);

// E for sinusoidal positions, (tables, places, places): table 0 is a sequence, table w a grid of width w.
STRATA_API at::Tensor sinusoidal_positions(int64_t tables, int64_t places);

struct HsaStreamOptions {
  int64_t branching = 16;
  c10::optional<at::Tensor> weights = c10::nullopt;        // (B, T)
  c10::optional<at::Tensor> key_bias = c10::nullopt;       // (B, Hk, T)
  c10::optional<at::Tensor> positions = c10::nullopt;      // (H, heights, distances, b, b); (H, heights, b, b) for one
  c10::optional<at::Tensor> level_weights = c10::nullopt;  // (H, levels): convex; needed for several levels
  int64_t near = 1;                                        // families of each height that a token sees
  bool both_sides = false;                                 // for encoders without a tree
  c10::optional<double> scale = c10::nullopt;

  double dropout = 0;                                      // as in HktOptions (hkt_op.h), like all that follows
  c10::optional<at::Tensor> dropout_state = c10::nullopt;  // (2) int64
  c10::optional<at::Tensor> cu_seqlens = c10::nullopt;     // packed sequences, each with its own tree
  int64_t max_seqlen = 0;
};

// The strictly causal form, or that of both sides. q and k as in hsa_attention. Returns out (B, H, T, dv) and lse (B,
// H, T).
STRATA_API std::tuple<at::Tensor, at::Tensor> hsa_stream_attention(at::TensorList q, at::TensorList k,
                                                                   const at::Tensor& v,
                                                                   const HsaStreamOptions& options = {});

// A bound of every row's KL divergence from HKT's attention on the same scores, (B, H, T) in the compute type
// (strata/hsa_stream.h). Positions are not read. Not differentiable.
STRATA_API at::Tensor hsa_stream_certificate(at::TensorList q, at::TensorList k, const HsaStreamOptions& options = {});

// One new token per sequence, q: (B, H, levels d), k: (B, Hk, levels d), v: (B, Hk, dv); the cache tensors are updated
// in place (strata/hsa_stream.h says what they hold). Returns (B, H, dv). Not differentiable.
struct HsaStreamState {
  at::Tensor keys, values, kappas, masses, lengths;
};
STRATA_API at::Tensor hsa_stream_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      HsaStreamState& state, const HsaStreamOptions& options = {});

}  // namespace strata
