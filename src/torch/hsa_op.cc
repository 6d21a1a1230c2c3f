// The tree form of HSA as operators: schema, kernels (CPU and CUDA alike), autograd. The backward recomputes what it
// needs from the inputs. The shapes for tracing are in Python (python/strata/_register.py), because trees are on the
// CPU wherever q is.
#include "torch/hsa_op.h"

#include <limits>

#include "strata/hsa.h"
#include "torch/compat.h"
#include "torch/hsa_op_common.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;
using namespace hsa_op;  // NOLINT: the helpers of the two HSA operators

// Views of the trees that one tensor holds, one behind the other.
void decode_trees(const Tensor& encoded, int64_t index, std::vector<TreeView>* views) {
  TORCH_CHECK(encoded.scalar_type() == at::kInt && encoded.dim() == 1 && encoded.is_contiguous() && encoded.is_cpu(),
              "trees[", index,
              "]: expected a contiguous int32 tensor on the CPU made by encode_tree (in Python: Tree.encoded)");
  const int32_t* data = encoded.data_ptr<int32_t>();
  int64_t left = encoded.numel();
  while (left > 0) {
    TreeView view;
    view.tokens = left >= 3 ? data[0] : -1;
    view.families = left >= 3 ? data[1] : -1;
    const bool has_offsets = view.tokens >= 0 && view.families >= 0 && 2 + view.families < left;
    const int64_t children = has_offsets ? data[2 + view.families] : -1;
    const int64_t numbers = 3 + 2 * view.families + children;
    TORCH_CHECK(has_offsets && children >= 0 && numbers <= left, "trees[", index,
                "]: its sizes are inconsistent; create it with encode_tree");
    view.child_begin = data + 2;
    view.children = view.child_begin + view.families + 1;
    view.kind = view.children + children;
    views->push_back(view);
    data += numbers;
    left -= numbers;
  }
}

TreeView decode_tree(const Tensor& encoded, int64_t index) {
  std::vector<TreeView> views;
  decode_trees(encoded, index, &views);
  TORCH_CHECK(views.size() == 1, "trees[", index, "]: expected one tree, got a tensor that holds ", views.size());
  return views[0];
}

// Views of the trees with their places in the batch.
struct Forest {
  Forest(TensorList trees, int64_t batch, int64_t tokens) {
    if (trees.size() == 1 && batch != 1) {
      decode_trees(trees[0], 0, &views);
    } else {
      for (size_t n = 0; n < trees.size(); ++n) views.push_back(decode_tree(trees[n], static_cast<int64_t>(n)));
    }
    const auto count = static_cast<int64_t>(views.size());
    const bool packed = batch == 1 && count != 1;
    TORCH_CHECK(packed || count == batch, "trees: expected one per sequence (", batch,
                "), or several over a packed batch of one; got ", count);
    int64_t first = 0;
    for (int64_t n = 0; n < count; ++n) {
      batch_of.push_back(packed ? 0 : n);
      first_token.push_back(packed ? first : 0);
      first += views[n].tokens;
      TORCH_CHECK(packed || views[n].tokens <= tokens, "trees[", n, "]: has ", views[n].tokens, " tokens, q has ",
                  tokens);
      covers_all = covers_all && (packed || views[n].tokens == tokens);
    }
    TORCH_CHECK(!packed || first == tokens, "trees: cover ", first, " tokens together, q has ", tokens);
  }
  std::vector<TreeView> views;
  std::vector<int64_t> batch_of, first_token;
  bool covers_all = true;
};

// ------------------------------------------------------------------------------------------------- tree form

struct TreeProblem {
  TreeProblem(const Tensor& q, const Tensor& k, const optional<Tensor>& v, TensorList trees,
              const optional<Tensor>& weights_, const optional<Tensor>& key_bias_, const optional<Tensor>& positions_,
              bool causal, const optional<double>& scale)
      : forest(trees, q.size(0), q.size(2)),
        weights(dense(weights_)),
        key_bias(dense(key_bias_)),
        positions(dense(positions_)) {
    fill_common(p, q, k, v, weights, key_bias, positions, scale);
    p.sequences = static_cast<int64_t>(forest.views.size());
    p.trees = forest.views.data();
    p.batch_of = forest.batch_of.data();
    p.first_token = forest.first_token.data();
    p.kinds = positions.has_value() ? positions->size(1) : 0;
    p.places = positions.has_value() ? positions->size(2) : 0;
    p.causal = causal;
  }
  TreeProblem(const TreeProblem&) = delete;
  Forest forest;
  optional<Tensor> weights, key_bias, positions;
  HsaProblem p;
};

std::tuple<Tensor, Tensor> hsa_attention_kernel(const Tensor& q, const Tensor& k, const Tensor& v, TensorList trees,
                                                const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                const optional<Tensor>& positions, bool causal,
                                                optional<double> scale) {
  check_qkv(q, k, v);
  check_terms(q, weights, key_bias, positions);
  const TreeProblem problem(q, k, v, trees, weights, key_bias, positions, causal, scale);
  const Tensor out = empty_with_layout(v, v.sym_sizes());
  const Tensor score = compute_empty({problem.p.sequences, q.size(1)}, q);
  if (!problem.forest.covers_all) out.zero_();
  run_hsa_forward(q, trees, problem.p, {view(out), score.data_ptr()});
  return {out, score};
}

Tensor hierarchy_score_kernel(const Tensor& q, const Tensor& k, TensorList trees, const optional<Tensor>& weights,
                              const optional<Tensor>& key_bias, const optional<Tensor>& positions, bool causal,
                              optional<double> scale) {
  check_qkv(q, k, c10::nullopt);
  check_terms(q, weights, key_bias, positions);
  const TreeProblem problem(q, k, c10::nullopt, trees, weights, key_bias, positions, causal, scale);
  const Tensor score = compute_empty({problem.p.sequences, q.size(1)}, q);
  run_hsa_forward(q, trees, problem.p, {{}, score.data_ptr()});
  return score;
}

std::vector<Tensor> hsa_attention_backward_kernel(const Tensor& dout, const optional<Tensor>& dscore, const Tensor& q,
                                                  const Tensor& k, const Tensor& v, TensorList trees,
                                                  const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                  const optional<Tensor>& positions, bool causal,
                                                  optional<double> scale) {
  check_qkv(q, k, v);
  check_terms(q, weights, key_bias, positions);
  std::vector<Tensor> gradients = empty_gradients(q, k, v, weights, key_bias, positions);
  const TreeProblem problem(q, k, v, trees, weights, key_bias, positions, causal, scale);
  const Tensor typed_dout = dout.to(q.scalar_type());
  const Tensor dense_dscore = dscore.has_value() ? dscore->to(compute_type(q.scalar_type())).contiguous() : Tensor();
  if (!problem.forest.covers_all) {
    for (Tensor& gradient : gradients) gradient.zero_();
  }
  HsaGradients g;
  g.dout = const_view(typed_dout);
  g.dscore = dense_dscore.defined() ? dense_dscore.data_ptr() : nullptr;
  g.dq[0] = view(gradients[0]);
  g.dk[0] = view(gradients[1]);
  g.dv = view(gradients[2]);
  Tensor per_head;
  if (weights.has_value()) {
    per_head = at::zeros({q.size(0), q.size(1), q.size(2)}, gradients[3].options());
    g.dweights = head_token_view(per_head);
  }
  if (key_bias.has_value()) g.dkey_bias = head_token_view(gradients[4]);
  if (positions.has_value()) g.dpositions = gradients[5].data_ptr();
  run_hsa_backward(q, trees, problem.p, g);
  if (weights.has_value()) gradients[3] = per_head.sum(1);
  return gradients;
}

// ------------------------------------------------------------------------------------------------- autograd

std::vector<Tensor> hsa_attention_backward_autograd(const Tensor& dout, const optional<Tensor>& dscore, const Tensor& q,
                                                    const Tensor& k, const Tensor& v, TensorList trees,
                                                    const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                    const optional<Tensor>& positions, bool causal,
                                                    optional<double> scale) {
  std::vector<Tensor> gradients =
      call_below_autograd("strata::hsa_attention_backward", hsa_attention_backward_kernel, q, dout, dscore, q, k, v,
                          trees, weights, key_bias, positions, causal, scale);
  variable_list inputs = inputs_of(q, k, v, weights, key_bias, positions);
  inputs.insert(inputs.end(), {dout, or_undefined(dscore)});
  refuse_second_derivative("strata::hsa_attention", inputs, gradients);
  return gradients;
}

std::tuple<Tensor, Tensor> hsa_attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, TensorList trees,
                                                  const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                  const optional<Tensor>& positions, bool causal,
                                                  optional<double> scale) {
  auto [out, score] = call_below_autograd("strata::hsa_attention", hsa_attention_kernel, q, q, k, v, trees, weights,
                                          key_bias, positions, causal, scale);
  attach_backward(
      "strata::hsa_attention", inputs_of(q, k, v, weights, key_bias, positions), {out, score},
      /*save_outputs=*/false,
      [trees = trees.vec(), causal, scale](const variable_list& s, const variable_list& gradients) {
        static const auto op = find_op<decltype(hsa_attention_backward_kernel)>("strata::hsa_attention_backward");
        return of_given(op.call(or_zeros(gradients[0], s[2]), optional_tensor(gradients[1]), s[0], s[1], s[2], trees,
                                optional_tensor(s[3]), optional_tensor(s[4]), optional_tensor(s[5]), causal, scale),
                        s);
      });
  return {out, score};
}

// The backward of the attention with a gradient of its score alone; k stands in for the values, which have no part in
// the score.
Tensor hierarchy_score_autograd(const Tensor& q, const Tensor& k, TensorList trees, const optional<Tensor>& weights,
                                const optional<Tensor>& key_bias, const optional<Tensor>& positions, bool causal,
                                optional<double> scale) {
  const Tensor score = call_below_autograd("strata::hierarchy_score", hierarchy_score_kernel, q, q, k, trees, weights,
                                           key_bias, positions, causal, scale);
  attach_backward(
      "strata::hierarchy_score", inputs_of(q, k, c10::nullopt, weights, key_bias, positions), {score},
      /*save_outputs=*/false,
      [trees = trees.vec(), causal, scale](const variable_list& s, const variable_list& gradients) {
        static const auto op = find_op<decltype(hsa_attention_backward_kernel)>("strata::hsa_attention_backward");
        return of_given(op.call(at::zeros_like(s[1]), optional_tensor(gradients[0]), s[0], s[1], s[1], trees,
                                optional_tensor(s[3]), optional_tensor(s[4]), optional_tensor(s[5]), causal, scale),
                        s);
      });
  return score;
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hsa_attention(Tensor q, Tensor k, Tensor v, Tensor[] trees, Tensor? weights=None, Tensor? key_bias=None, "
      "Tensor? positions=None, *, bool causal=False, float? scale=None) -> (Tensor out, Tensor score)");
  m.def(
      "hsa_attention_backward(Tensor dout, Tensor? dscore, Tensor q, Tensor k, Tensor v, Tensor[] trees, "
      "Tensor? weights, Tensor? key_bias, Tensor? positions, bool causal, float? scale) -> Tensor[]");
  m.def(
      "hierarchy_score(Tensor q, Tensor k, Tensor[] trees, Tensor? weights=None, Tensor? key_bias=None, "
      "Tensor? positions=None, *, bool causal=False, float? scale=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) {
  m.impl("hsa_attention", hsa_attention_kernel);
  m.impl("hsa_attention_backward", hsa_attention_backward_kernel);
  m.impl("hierarchy_score", hierarchy_score_kernel);
}
TORCH_LIBRARY_IMPL(strata, CUDA, m) {
  m.impl("hsa_attention", hsa_attention_kernel);
  m.impl("hsa_attention_backward", hsa_attention_backward_kernel);
  m.impl("hierarchy_score", hierarchy_score_kernel);
}
TORCH_LIBRARY_IMPL(strata, Autograd, m) {
  m.impl("hsa_attention", hsa_attention_autograd);
  m.impl("hsa_attention_backward", hsa_attention_backward_autograd);
  m.impl("hierarchy_score", hierarchy_score_autograd);
}

}  // namespace

Tensor encode_tree(const Tree& tree) {
  const TreeView view = tree.view();
  std::vector<int32_t> flat = {static_cast<int32_t>(view.tokens), static_cast<int32_t>(view.families)};
  flat.insert(flat.end(), tree.child_begin().begin(), tree.child_begin().end());
  flat.insert(flat.end(), tree.children().begin(), tree.children().end());
  flat.insert(flat.end(), view.kind, view.kind + view.families);
  return torch::tensor(flat, at::kInt);
}

int64_t trees_cost(const Tensor& encoded) {
  std::vector<TreeView> views;
  decode_trees(encoded, 0, &views);
  int64_t cost = 0;
  for (const TreeView& view : views) cost += view.cost();
  return cost;
}

std::tuple<Tensor, Tensor> hsa_attention(const Tensor& q, const Tensor& k, const Tensor& v, TensorList trees,
                                         const HsaOptions& o) {
  static const auto op = find_op<decltype(hsa_attention_kernel)>("strata::hsa_attention");
  return op.call(q, k, v, trees, o.weights, o.key_bias, o.positions, o.causal, o.scale);
}

Tensor hierarchy_score(const Tensor& q, const Tensor& k, TensorList trees, const HsaOptions& o) {
  static const auto op = find_op<decltype(hierarchy_score_kernel)>("strata::hierarchy_score");
  return op.call(q, k, trees, o.weights, o.key_bias, o.positions, o.causal, o.scale);
}

Tensor kl_gap(const Tensor& lse, const Tensor& score, const optional<Tensor>& weights) {
  if (!weights.has_value()) return lse.sum(-1) - static_cast<double>(lse.size(-1)) * score;
  const Tensor w = weights->unsqueeze(1);
  const Tensor terms = at::where(w > 0, w * lse, at::zeros_like(lse));  // 0 * -inf is 0 here
  return terms.sum(-1) - weights->sum(-1, true) * score;
}

TreeChoice best_tree(const Tensor& q, const Tensor& k, TensorList candidates, const HsaOptions& o,
                     optional<int64_t> max_cost) {
  TORCH_CHECK_VALUE(!candidates.empty(), "candidates: expected at least one tree, got none");
  TreeChoice choice{-1, at::empty({static_cast<int64_t>(candidates.size())}, at::kDouble)};
  int64_t cheapest = std::numeric_limits<int64_t>::max();
  for (int64_t n = 0; n < choice.scores.size(0); ++n) {
    const int64_t cost = decode_tree(candidates[n], n).cost();
    cheapest = std::min(cheapest, cost);
    choice.scores[n] = hierarchy_score(q, k, {candidates[n]}, o).sum().to(at::kDouble);
    const bool allowed = !max_cost.has_value() || cost <= *max_cost;
    if (allowed && (choice.index < 0 || choice.scores[n].item<double>() > choice.scores[choice.index].item<double>()))
      choice.index = n;
  }
  TORCH_CHECK_VALUE(choice.index >= 0, "max_cost: expected at least ", cheapest,
                    ", the cost of the cheapest candidate, got ", *max_cost);
  return choice;
}

}  // namespace strata
