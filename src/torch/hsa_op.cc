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
  Forest(TensorList trees, int64_t batch, int64_t tokens, int levels) {
    if (trees.size() == 1 && batch != 1) {
      decode_trees(trees[0], 0, &views);
    } else {
      for (size_t n = 0; n < trees.size(); ++n) views.push_back(decode_tree(trees[n], static_cast<int64_t>(n)));
    }
    const auto count = static_cast<int64_t>(views.size());
    const bool packed = batch == 1 && count != 1;
    TORCH_CHECK(packed || count == batch, "trees: expected one per sequence (", batch,
                "), or several over a packed batch of one; got ", count);
    for (int64_t n = 0; n < count; ++n) {
      batch_of.push_back(packed ? 0 : n);
      TORCH_CHECK(packed || views[n].tokens <= tokens, "trees[", n, "]: has ", views[n].tokens, " tokens, q has ",
                  tokens);
      covers_all = covers_all && (packed || views[n].tokens == tokens);
    }
    add_level(packed, 0, tokens);
    TORCH_CHECK(!packed || rows[0] == tokens, "trees: cover ", rows[0], " tokens together, q has ", tokens);
    for (int l = 1; l < levels; ++l) add_level(packed, l, tokens);
  }
  // The pyramids of packed sequences follow each other, like their tokens.
  void add_level(bool packed, int l, int64_t tokens) {
    int64_t first = 0;
    for (size_t n = 0; n < views.size(); ++n) {
      first_row[l].push_back(packed ? first : 0);
      first += hkt_level_tokens(views[n].tokens, l);
    }
    rows[l] = packed ? first : hkt_level_tokens(tokens, l);
  }
  std::vector<TreeView> views;
  std::vector<int64_t> batch_of, first_row[kMaxLevels];
  int64_t rows[kMaxLevels] = {};  // that the tensors of each level have
  bool covers_all = true;
};

// Checks the tensors as far as trees do not matter, so that the sizes of q may be used.
Forest forest_of(const HsaInputs& in, TensorList trees) {
  TORCH_CHECK(!in.q.empty() && in.q.size() <= kMaxLevels && in.q[0].dim() == 4, "q: expected 1 to ", kMaxLevels,
              " levels of 4 dimensions (batch, heads, tokens, channels), got ", in.q.size(), " levels",
              in.q.empty() ? c10::str("") : c10::str(", the first of shape ", in.q[0].sizes()));
  return Forest(trees, in.q[0].size(0), in.q[0].size(2), static_cast<int>(in.q.size()));
}

// ------------------------------------------------------------------------------------------------- tree form

struct TreeProblem {
  TreeProblem(const HsaInputs& in, TensorList trees, bool causal, const optional<double>& scale)
      : forest(forest_of(in, trees)),
        weights(dense(in.weights)),
        key_bias(dense(in.key_bias)),
        positions(dense(in.positions)),
        level_weights(dense(in.level_weights)) {
    check_inputs(in, [&](int l) { return forest.rows[l]; });
    if (positions.has_value()) {
      TORCH_CHECK(
          positions->dim() == 4 && positions->size(0) == in.q[0].size(1) && positions->size(2) == positions->size(3),
          "positions: expected shape (", in.q[0].size(1), ", tables, places, places), got ", positions->sizes());
    }
    fill_common(p, {in.q, in.k, in.v, weights, key_bias, positions, level_weights}, scale);
    p.sequences = static_cast<int64_t>(forest.views.size());
    p.trees = forest.views.data();
    p.batch_of = forest.batch_of.data();
    p.first_token = forest.first_row[0].data();
    for (int l = 0; l < p.levels; ++l) p.first_row[l] = forest.first_row[l].data();
    p.kinds = positions.has_value() ? positions->size(1) : 0;
    p.places = positions.has_value() ? positions->size(2) : 0;
    p.causal = causal;
  }
  TreeProblem(const TreeProblem&) = delete;
  Forest forest;
  optional<Tensor> weights, key_bias, positions, level_weights;
  HsaProblem p;
};

std::tuple<Tensor, Tensor> hsa_attention_kernel(TensorList q, TensorList k, const Tensor& v, TensorList trees,
                                                const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                const optional<Tensor>& positions,
                                                const optional<Tensor>& level_weights, bool causal,
                                                optional<double> scale) {
  const optional<Tensor> values = v;
  const TreeProblem problem({q, k, values, weights, key_bias, positions, level_weights}, trees, causal, scale);
  const Tensor out = empty_output(q[0], v);
  const Tensor score = compute_empty({problem.p.sequences, q[0].size(1)}, v);
  if (!problem.forest.covers_all) out.zero_();
  run_hsa_forward(v, trees, problem.p, {view(out), score.data_ptr()});
  return {out, score};
}

Tensor hierarchy_score_kernel(TensorList q, TensorList k, TensorList trees, const optional<Tensor>& weights,
                              const optional<Tensor>& key_bias, const optional<Tensor>& positions,
                              const optional<Tensor>& level_weights, bool causal, optional<double> scale) {
  const optional<Tensor> none;
  const TreeProblem problem({q, k, none, weights, key_bias, positions, level_weights}, trees, causal, scale);
  const Tensor score = compute_empty({problem.p.sequences, q[0].size(1)}, q[0]);
  run_hsa_forward(q[0], trees, problem.p, {{}, score.data_ptr()});
  return score;
}

std::vector<Tensor> hsa_attention_backward_kernel(const Tensor& dout, const optional<Tensor>& dscore, TensorList q,
                                                  TensorList k, const Tensor& v, TensorList trees,
                                                  const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                  const optional<Tensor>& positions,
                                                  const optional<Tensor>& level_weights, bool causal,
                                                  optional<double> scale) {
  const optional<Tensor> values = v;
  const HsaInputs in{q, k, values, weights, key_bias, positions, level_weights};
  const TreeProblem problem(in, trees, causal, scale);
  std::vector<Tensor> gradients = empty_gradients(in);
  const Tensor typed_dout = dout.to(v.scalar_type());
  const Tensor dense_dscore = dscore.has_value() ? dscore->to(compute_type(v.scalar_type())).contiguous() : Tensor();
  if (!problem.forest.covers_all) {
    for (Tensor& gradient : gradients) gradient.zero_();
  }
  GradientViews<HsaGradients> views(in, gradients);
  views.g.dout = const_view(typed_dout);
  views.g.dscore = dense_dscore.defined() ? dense_dscore.data_ptr() : nullptr;
  run_hsa_backward(v, trees, problem.p, views.g);
  views.finish();
  return gradients;
}

// ------------------------------------------------------------------------------------------------- autograd

std::vector<Tensor> hsa_attention_backward_autograd(const Tensor& dout, const optional<Tensor>& dscore, TensorList q,
                                                    TensorList k, const Tensor& v, TensorList trees,
                                                    const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                    const optional<Tensor>& positions,
                                                    const optional<Tensor>& level_weights, bool causal,
                                                    optional<double> scale) {
  std::vector<Tensor> gradients =
      call_below_autograd("strata::hsa_attention_backward", hsa_attention_backward_kernel, v, dout, dscore, q, k, v,
                          trees, weights, key_bias, positions, level_weights, causal, scale);
  const optional<Tensor> values = v;
  variable_list inputs = inputs_of({q, k, values, weights, key_bias, positions, level_weights});
  inputs.insert(inputs.end(), {dout, or_undefined(dscore)});
  refuse_second_derivative("strata::hsa_attention", inputs, gradients);
  return gradients;
}

std::tuple<Tensor, Tensor> hsa_attention_autograd(TensorList q, TensorList k, const Tensor& v, TensorList trees,
                                                  const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                  const optional<Tensor>& positions,
                                                  const optional<Tensor>& level_weights, bool causal,
                                                  optional<double> scale) {
  auto [out, score] = call_below_autograd("strata::hsa_attention", hsa_attention_kernel, v, q, k, v, trees, weights,
                                          key_bias, positions, level_weights, causal, scale);
  const optional<Tensor> values = v;
  attach_backward(
      "strata::hsa_attention", inputs_of({q, k, values, weights, key_bias, positions, level_weights}), {out, score},
      /*save_outputs=*/false,
      [trees = trees.vec(), causal, scale](const variable_list& s, const variable_list& gradients) {
        static const auto op = find_op<decltype(hsa_attention_backward_kernel)>("strata::hsa_attention_backward");
        const SavedInputs in(s, 0);
        const Tensor& q = in.q()[0];
        const Tensor dout = gradients[0].defined() ? gradients[0] : at::zeros_like(empty_output(q, in.v));
        return of_given(op.call(dout, optional_tensor(gradients[1]), in.q(), in.k(), in.v, trees, in.weights,
                                in.key_bias, in.positions, in.level_weights, causal, scale),
                        s);
      });
  return {out, score};
}

// The backward of the attention with a gradient of its score alone; k stands in for the values, which have no part in
// the score.
Tensor hierarchy_score_autograd(TensorList q, TensorList k, TensorList trees, const optional<Tensor>& weights,
                                const optional<Tensor>& key_bias, const optional<Tensor>& positions,
                                const optional<Tensor>& level_weights, bool causal, optional<double> scale) {
  const optional<Tensor> none;
  const HsaInputs in{q, k, none, weights, key_bias, positions, level_weights};
  const Tensor score = call_below_autograd("strata::hierarchy_score", hierarchy_score_kernel, k[0], q, k, trees,
                                           weights, key_bias, positions, level_weights, causal, scale);
  attach_backward("strata::hierarchy_score", inputs_of(in), {score}, /*save_outputs=*/false,
                  [trees = trees.vec(), causal, scale](const variable_list& s, const variable_list& gradients) {
                    static const auto op =
                        find_op<decltype(hsa_attention_backward_kernel)>("strata::hsa_attention_backward");
                    const SavedInputs saved(s, 0);
                    return of_given(op.call(at::zeros_like(saved.q()[0]), optional_tensor(gradients[0]), saved.q(),
                                            saved.k(), saved.k()[0], trees, saved.weights, saved.key_bias,
                                            saved.positions, saved.level_weights, causal, scale),
                                    s);
                  });
  return score;
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hsa_attention(Tensor[] q, Tensor[] k, Tensor v, Tensor[] trees, Tensor? weights=None, Tensor? key_bias=None, "
      "Tensor? positions=None, Tensor? level_weights=None, *, bool causal=False, float? scale=None) "
      "-> (Tensor out, Tensor score)");
  m.def(
      "hsa_attention_backward(Tensor dout, Tensor? dscore, Tensor[] q, Tensor[] k, Tensor v, Tensor[] trees, "
      "Tensor? weights, Tensor? key_bias, Tensor? positions, Tensor? level_weights, bool causal, float? scale) "
      "-> Tensor[]");
  m.def(
      "hierarchy_score(Tensor[] q, Tensor[] k, Tensor[] trees, Tensor? weights=None, Tensor? key_bias=None, "
      "Tensor? positions=None, Tensor? level_weights=None, *, bool causal=False, float? scale=None) -> Tensor");
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

std::tuple<Tensor, Tensor> hsa_attention(TensorList q, TensorList k, const Tensor& v, TensorList trees,
                                         const HsaOptions& o) {
  static const auto op = find_op<decltype(hsa_attention_kernel)>("strata::hsa_attention");
  return op.call(q, k, v, trees, o.weights, o.key_bias, o.positions, o.level_weights, o.causal, o.scale);
}

Tensor hierarchy_score(TensorList q, TensorList k, TensorList trees, const HsaOptions& o) {
  static const auto op = find_op<decltype(hierarchy_score_kernel)>("strata::hierarchy_score");
  return op.call(q, k, trees, o.weights, o.key_bias, o.positions, o.level_weights, o.causal, o.scale);
}

Tensor kl_gap(const Tensor& lse, const Tensor& score, const optional<Tensor>& weights) {
  if (!weights.has_value()) return lse.sum(-1) - static_cast<double>(lse.size(-1)) * score;
  const Tensor w = weights->unsqueeze(1);
  const Tensor terms = at::where(w > 0, w * lse, at::zeros_like(lse));  // 0 * -inf is 0 here
  return terms.sum(-1) - weights->sum(-1, true) * score;
}

TreeChoice best_tree(TensorList q, TensorList k, TensorList candidates, const HsaOptions& o,
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
