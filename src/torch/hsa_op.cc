// The HSA operators: schema, CPU and meta kernels, autograd. The backward recomputes what it needs from the inputs.
#include "torch/hsa_op.h"

#include "strata/hsa.h"
#include "strata/hsa_stream.h"
#include "torch/compat.h"
#include "torch/op_common.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;

TreeView decode_tree(const Tensor& encoded, int64_t index) {
  TORCH_CHECK(encoded.scalar_type() == at::kInt && encoded.dim() == 1 && encoded.is_contiguous() && encoded.is_cpu() &&
                  encoded.numel() >= 2,
              "trees[", index,
              "]: expected a contiguous int32 tensor on the CPU made by encode_tree (in Python: Tree.encoded)");
  const int32_t* data = encoded.data_ptr<int32_t>();
  TreeView view;
  view.tokens = data[0];
  view.families = data[1];
  const int64_t children = encoded.numel() - 3 - 2 * view.families;
  TORCH_CHECK(view.tokens >= 0 && view.families >= 0 && children >= 0 && data[2 + view.families] == children, "trees[",
              index, "]: its sizes do not fit together; make it with encode_tree");
  view.child_begin = data + 2;
  view.children = view.child_begin + view.families + 1;
  view.kind = view.children + children;
  return view;
}

// Views of the trees with their places in the batch.
struct Forest {
  Forest(TensorList trees, int64_t batch, int64_t tokens) {
    const auto count = static_cast<int64_t>(trees.size());
    const bool packed = batch == 1 && count != 1;
    TORCH_CHECK(packed || count == batch, "trees: expected one per sequence (", batch,
                "), or several over a packed batch of one; got ", count);
    int64_t first = 0;
    for (int64_t n = 0; n < count; ++n) {
      views.push_back(decode_tree(trees[n], n));
      batch_of.push_back(packed ? 0 : n);
      first_token.push_back(packed ? first : 0);
      first += views.back().tokens;
      TORCH_CHECK(packed || views.back().tokens <= tokens, "trees[", n, "]: has ", views.back().tokens,
                  " tokens, q has ", tokens);
      covers_all = covers_all && (packed || views.back().tokens == tokens);
    }
    TORCH_CHECK(!packed || first == tokens, "trees: cover ", first, " tokens together, q has ", tokens);
  }
  std::vector<TreeView> views;
  std::vector<int64_t> batch_of, first_token;
  bool covers_all = true;
};

void check_qkv(const Tensor& q, const Tensor& k, const optional<Tensor>& v) {
  TORCH_CHECK(q.dim() == 4, "q: expected 4 dimensions (batch, heads, tokens, channels), got shape ", q.sizes());
  const at::ScalarType type = q.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble || type == at::kBFloat16,
              "q: expected float32, float64 or bfloat16, got ", type, "; convert q, k and v with .to(torch.float32)");
  check_tensor("k", k, q.sizes(), type, q);
  if (!v.has_value()) return;
  TORCH_CHECK(v->dim() == 4, "v: expected 4 dimensions (batch, heads, tokens, channels), got shape ", v->sizes());
  check_tensor("v", *v, {q.size(0), q.size(1), q.size(2), v->size(3)}, type, q);
}

void check_terms(const Tensor& q, const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                 const optional<Tensor>& positions) {
  const at::ScalarType compute = compute_type(q.scalar_type());
  if (weights.has_value()) check_tensor("weights", *weights, {q.size(0), q.size(2)}, compute, q);
  if (key_bias.has_value()) check_tensor("key_bias", *key_bias, {q.size(0), q.size(1), q.size(2)}, compute, q);
  if (positions.has_value()) {
    TORCH_CHECK(positions->dim() == 4 && positions->size(0) == q.size(1) && positions->size(2) == positions->size(3),
                "positions: expected shape (", q.size(1), ", tables, places, places), got ", positions->sizes());
    check_tensor("positions", *positions, positions->sizes(), compute, q);
  }
}

optional<Tensor> dense(const optional<Tensor>& t) {
  return t.has_value() ? optional<Tensor>(t->contiguous()) : c10::nullopt;
}

// (B, T) and (B, H, T) arrays as views over (batch, head, token, channel).
ConstView token_view(const Tensor& t) { return {t.data_ptr(), {t.stride(0), 0, t.stride(1), 1}}; }
View head_token_view(const Tensor& t) { return {t.data_ptr(), {t.stride(0), t.stride(1), t.stride(2), 1}}; }

template <class Problem>
void fill_common(Problem& p, const Tensor& q, const Tensor& k, const optional<Tensor>& v,
                 const optional<Tensor>& weights, const optional<Tensor>& key_bias, const optional<Tensor>& positions,
                 const optional<double>& scale) {
  p.dtype = dtype_of(q);
  p.heads = q.size(1);
  p.head_size = static_cast<int>(q.size(3));
  p.value_size = v.has_value() ? static_cast<int>(v->size(3)) : p.head_size;
  p.q = const_view(q);
  p.k = const_view(k);
  if (v.has_value()) p.v = const_view(*v);
  if (weights.has_value()) p.weights = token_view(*weights);
  if (key_bias.has_value()) p.key_bias = head_token_view(*key_bias);
  if (positions.has_value()) p.positions = positions->data_ptr();
  p.scale = scale.value_or(1.0 / std::sqrt(std::max<double>(1.0, static_cast<double>(q.size(3)))));
  p.threads = at::get_num_threads();
}

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

Tensor compute_empty(at::IntArrayRef sizes, const Tensor& q) {
  return at::empty(sizes, q.options().dtype(compute_type(q.scalar_type())));
}

std::tuple<Tensor, Tensor> hsa_attention_meta(const Tensor& q, const Tensor& k, const Tensor& v, TensorList trees,
                                              const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                              const optional<Tensor>& positions, bool, optional<double>) {
  check_qkv(q, k, v);
  check_terms(q, weights, key_bias, positions);
  return {empty_with_layout(v, v.sizes()), compute_empty({static_cast<int64_t>(trees.size()), q.size(1)}, q)};
}

std::tuple<Tensor, Tensor> hsa_attention_cpu(const Tensor& q, const Tensor& k, const Tensor& v, TensorList trees,
                                             const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                             const optional<Tensor>& positions, bool causal, optional<double> scale) {
  auto [out, score] = hsa_attention_meta(q, k, v, trees, weights, key_bias, positions, causal, scale);
  const TreeProblem problem(q, k, v, trees, weights, key_bias, positions, causal, scale);
  if (!problem.forest.covers_all) out.zero_();
  throw_if_failed(hsa_forward(problem.p, {view(out), score.data_ptr()}));
  return {out, score};
}

Tensor hierarchy_score_cpu(const Tensor& q, const Tensor& k, TensorList trees, const optional<Tensor>& weights,
                           const optional<Tensor>& key_bias, const optional<Tensor>& positions, bool causal,
                           optional<double> scale) {
  check_qkv(q, k, c10::nullopt);
  check_terms(q, weights, key_bias, positions);
  const Tensor score = compute_empty({static_cast<int64_t>(trees.size()), q.size(1)}, q);
  const TreeProblem problem(q, k, c10::nullopt, trees, weights, key_bias, positions, causal, scale);
  throw_if_failed(hsa_forward(problem.p, {{}, score.data_ptr()}));
  return score;
}

// dq, dk, dv, dweights, dkey_bias, dpositions; the last three are empty tensors where there is no such input.
std::vector<Tensor> empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v, const optional<Tensor>& weights,
                                    const optional<Tensor>& key_bias, const optional<Tensor>& positions) {
  const std::vector<int64_t> none = {0};
  return {empty_with_layout(q, q.sizes()),
          empty_with_layout(k, k.sizes()),
          empty_with_layout(v, v.sizes()),
          compute_empty(weights.has_value() ? weights->sizes() : at::IntArrayRef(none), q),
          compute_empty(key_bias.has_value() ? key_bias->sizes() : at::IntArrayRef(none), q),
          compute_empty(positions.has_value() ? positions->sizes() : at::IntArrayRef(none), q)};
}

std::vector<Tensor> hsa_attention_backward_meta(const Tensor&, const optional<Tensor>&, const Tensor& q,
                                                const Tensor& k, const Tensor& v, TensorList,
                                                const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                const optional<Tensor>& positions, bool, optional<double>) {
  return empty_gradients(q, k, v, weights, key_bias, positions);
}

std::vector<Tensor> hsa_attention_backward_cpu(const Tensor& dout, const optional<Tensor>& dscore, const Tensor& q,
                                               const Tensor& k, const Tensor& v, TensorList trees,
                                               const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                               const optional<Tensor>& positions, bool causal, optional<double> scale) {
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
  g.dq = view(gradients[0]);
  g.dk = view(gradients[1]);
  g.dv = view(gradients[2]);
  Tensor per_head;
  if (weights.has_value()) {
    per_head = at::zeros({q.size(0), q.size(1), q.size(2)}, gradients[3].options());
    g.dweights = head_token_view(per_head);
  }
  if (key_bias.has_value()) g.dkey_bias = head_token_view(gradients[4]);
  if (positions.has_value()) g.dpositions = gradients[5].data_ptr();
  throw_if_failed(hsa_backward(problem.p, g));
  if (weights.has_value()) gradients[3] = per_head.sum(1);
  return gradients;
}

// ------------------------------------------------------------------------------------------------- streaming form

std::tuple<Tensor, Tensor> hsa_stream_meta(const Tensor& q, const Tensor& k, const Tensor& v, int64_t,
                                           const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                           const optional<Tensor>& positions, optional<double>) {
  check_qkv(q, k, v);
  check_terms(q, weights, key_bias, positions);
  return {empty_with_layout(v, v.sizes()), compute_empty({q.size(0), q.size(1), q.size(2)}, q)};
}

struct StreamProblem {
  StreamProblem(const Tensor& q, const Tensor& k, const Tensor& v, int64_t branching, const optional<Tensor>& weights_,
                const optional<Tensor>& key_bias_, const optional<Tensor>& positions_, const optional<double>& scale)
      : weights(dense(weights_)), key_bias(dense(key_bias_)), positions(dense(positions_)) {
    fill_common(p, q, k, v, weights, key_bias, positions, scale);
    p.batch = q.size(0);
    p.tokens = q.size(2);
    p.branching = static_cast<int>(branching);
    p.heights = positions.has_value() ? positions->size(1) : 0;
    TORCH_CHECK(!positions.has_value() || positions->size(2) == branching, "positions: expected tables of ", branching,
                " x ", branching, ", got ", positions->sizes());
  }
  StreamProblem(const StreamProblem&) = delete;
  optional<Tensor> weights, key_bias, positions;
  HsaStreamProblem p;
};

std::tuple<Tensor, Tensor> hsa_stream_cpu(const Tensor& q, const Tensor& k, const Tensor& v, int64_t branching,
                                          const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                          const optional<Tensor>& positions, optional<double> scale) {
  auto [out, lse] = hsa_stream_meta(q, k, v, branching, weights, key_bias, positions, scale);
  const StreamProblem problem(q, k, v, branching, weights, key_bias, positions, scale);
  throw_if_failed(hsa_stream_forward(problem.p, {view(out), lse.data_ptr()}));
  return {out, lse};
}

std::vector<Tensor> hsa_stream_backward_meta(const Tensor&, const optional<Tensor>&, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const Tensor&, const Tensor&, int64_t,
                                             const optional<Tensor>&, const optional<Tensor>& key_bias,
                                             const optional<Tensor>& positions, optional<double>) {
  std::vector<Tensor> gradients = empty_gradients(q, k, v, c10::nullopt, key_bias, positions);
  gradients.erase(gradients.begin() + 3);  // weights get no gradient in the streaming form
  return gradients;
}

std::vector<Tensor> hsa_stream_backward_cpu(const Tensor& dout, const optional<Tensor>& dlse, const Tensor& q,
                                            const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                            int64_t branching, const optional<Tensor>& weights,
                                            const optional<Tensor>& key_bias, const optional<Tensor>& positions,
                                            optional<double> scale) {
  std::vector<Tensor> gradients =
      hsa_stream_backward_meta(dout, dlse, q, k, v, out, lse, branching, weights, key_bias, positions, scale);
  const StreamProblem problem(q, k, v, branching, weights, key_bias, positions, scale);
  const Tensor typed_dout = dout.to(q.scalar_type()), dense_lse = lse.contiguous();
  const Tensor dense_dlse = dlse.has_value() ? dlse->to(compute_type(q.scalar_type())).contiguous() : Tensor();
  HsaStreamGradients g;
  g.dout = const_view(typed_dout);
  g.dlse = dense_dlse.defined() ? dense_dlse.data_ptr() : nullptr;
  g.dq = view(gradients[0]);
  g.dk = view(gradients[1]);
  g.dv = view(gradients[2]);
  if (key_bias.has_value()) g.dkey_bias = head_token_view(gradients[3]);
  if (positions.has_value()) g.dpositions = gradients[4].data_ptr();
  throw_if_failed(hsa_stream_backward(problem.p, {view(out), dense_lse.data_ptr()}, g));
  return gradients;
}

// One decoding step; keys, values, kappas, masses and lengths are updated in place.
Tensor hsa_stream_step_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const optional<Tensor>& weight,
                           const optional<Tensor>& key_bias, const optional<Tensor>& positions, const Tensor& keys,
                           const Tensor& values, const Tensor& kappas, const Tensor& masses, const Tensor& lengths,
                           optional<double> scale) {
  TORCH_CHECK(q.dim() == 3 && keys.dim() == 5, "q: expected shape (batch, heads, channels), got ", q.sizes());
  const int64_t B = q.size(0), H = q.size(1), d = q.size(2), capacity = keys.size(2), b = keys.size(3);
  const at::ScalarType type = q.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble, "q: decoding expects float32 or float64, got ", type);
  TORCH_CHECK(v.dim() == 3, "v: expected shape (batch, heads, channels), got ", v.sizes());
  check_tensor("k", k, {B, H, d}, type, q);
  check_tensor("v", v, {B, H, v.size(2)}, type, q);
  check_tensor("keys", keys, {B, H, capacity, b, d}, type, q);
  check_tensor("values", values, {B, H, capacity, b, v.size(2)}, type, q);
  check_tensor("kappas", kappas, {B, H, capacity, b}, type, q);
  check_tensor("masses", masses, {B, capacity, b}, type, q);
  check_tensor("lengths", lengths, {B}, at::kLong, q);
  if (weight.has_value()) check_tensor("weight", *weight, {B}, type, q);
  if (key_bias.has_value()) check_tensor("key_bias", *key_bias, {B, H}, type, q);
  if (positions.has_value()) check_tensor("positions", *positions, {H, positions->size(1), b, b}, type, q);
  for (const Tensor* cache : {&keys, &values, &kappas, &masses, &lengths}) {
    TORCH_CHECK(cache->is_contiguous(), "the cache's tensors must be contiguous, because they are updated in place");
  }
  const Tensor dense_q = q.contiguous(), dense_k = k.contiguous(), dense_v = v.contiguous();
  const optional<Tensor> dense_weight = dense(weight), dense_bias = dense(key_bias), dense_positions = dense(positions);
  const Tensor out = at::empty({B, H, v.size(2)}, q.options());
  HsaStreamStep s;
  s.dtype = dtype_of(q);
  s.batch = B;
  s.heads = H;
  s.branching = static_cast<int>(b);
  s.head_size = static_cast<int>(d);
  s.value_size = static_cast<int>(v.size(2));
  s.capacity = capacity;
  s.q = dense_q.data_ptr();
  s.k = dense_k.data_ptr();
  s.v = dense_v.data_ptr();
  if (weight.has_value()) s.weight = dense_weight->data_ptr();
  if (key_bias.has_value()) s.key_bias = dense_bias->data_ptr();
  if (positions.has_value()) {
    s.positions = dense_positions->data_ptr();
    s.heights = positions->size(1);
  }
  s.scale = scale.value_or(1.0 / std::sqrt(std::max<double>(1.0, static_cast<double>(d))));
  s.keys = keys.data_ptr();
  s.values = values.data_ptr();
  s.kappas = kappas.data_ptr();
  s.masses = masses.data_ptr();
  s.lengths = lengths.data_ptr<int64_t>();
  s.out = out.data_ptr();
  throw_if_failed(hsa_stream_step(s));
  return out;
}

// ------------------------------------------------------------------------------------------------- autograd

optional<Tensor> optional_tensor(const Tensor& t) { return t.defined() ? optional<Tensor>(t) : c10::nullopt; }

// The gradient operators of both forms under one node that refuses to be differentiated again.
class HsaBackwardOnce : public torch::autograd::Function<HsaBackwardOnce> {
 public:
  // tensors: every tensor of the call, so that the graph knows about them; `call` does the work.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext*, TensorList,
                                                const std::function<std::vector<Tensor>()>& call) {
    at::AutoDispatchBelowADInplaceOrView below;
    return call();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    TORCH_CHECK(false, "strata's HSA attention cannot be differentiated twice (double backward is not implemented)");
  }
};

std::vector<Tensor> hsa_attention_backward_autograd(const Tensor& dout, const optional<Tensor>& dscore, const Tensor& q,
                                                    const Tensor& k, const Tensor& v, TensorList trees,
                                                    const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                    const optional<Tensor>& positions, bool causal,
                                                    optional<double> scale) {
  static const auto op = find_op<decltype(hsa_attention_backward_cpu)>("strata::hsa_attention_backward");
  const std::vector<Tensor> tensors = {dout, q, k, v};
  return HsaBackwardOnce::apply(TensorList(tensors), std::function<std::vector<Tensor>()>([&] {
                                  return op.call(dout, dscore, q, k, v, trees, weights, key_bias, positions, causal,
                                                 scale);
                                }));
}

std::vector<Tensor> hsa_stream_backward_autograd(const Tensor& dout, const optional<Tensor>& dlse, const Tensor& q,
                                                 const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                                 int64_t branching, const optional<Tensor>& weights,
                                                 const optional<Tensor>& key_bias, const optional<Tensor>& positions,
                                                 optional<double> scale) {
  static const auto op = find_op<decltype(hsa_stream_backward_cpu)>("strata::hsa_stream_attention_backward");
  const std::vector<Tensor> tensors = {dout, q, k, v};
  return HsaBackwardOnce::apply(TensorList(tensors), std::function<std::vector<Tensor>()>([&] {
                                  return op.call(dout, dlse, q, k, v, out, lse, branching, weights, key_bias, positions,
                                                 scale);
                                }));
}

class HsaForward : public torch::autograd::Function<HsaForward> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k,
                                                const Tensor& v, optional<Tensor> weights, optional<Tensor> key_bias,
                                                optional<Tensor> positions, std::vector<Tensor> trees, bool causal,
                                                optional<double> scale) {
    at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_op<decltype(hsa_attention_cpu)>("strata::hsa_attention");
    auto [out, score] = op.call(q, k, v, trees, weights, key_bias, positions, causal, scale);
    torch::autograd::variable_list saved = {
        q, k, v, weights.value_or(Tensor()), key_bias.value_or(Tensor()), positions.value_or(Tensor())};
    ctx->save_for_backward(saved);
    ctx->saved_data["trees"] = trees;
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    ctx->set_materialize_grads(false);
    return {out, score};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto s = ctx->get_saved_variables();
    static const auto op = find_op<decltype(hsa_attention_backward_cpu)>("strata::hsa_attention_backward");
    const Tensor dout = grads[0].defined() ? grads[0] : at::zeros_like(s[2]);
    const std::vector<Tensor> trees = ctx->saved_data["trees"].toTensorVector();
    torch::autograd::variable_list result = op.call(
        dout, optional_tensor(grads[1]), s[0], s[1], s[2], trees, optional_tensor(s[3]), optional_tensor(s[4]),
        optional_tensor(s[5]), ctx->saved_data["causal"].toBool(), ctx->saved_data["scale"].toOptional<double>());
    for (int at = 3; at < 6; ++at) {
      if (!s[at].defined()) result[at] = Tensor();
    }
    result.resize(9);  // trees, causal, scale
    return result;
  }
};

class HsaStreamForward : public torch::autograd::Function<HsaStreamForward> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k,
                                                const Tensor& v, optional<Tensor> key_bias, optional<Tensor> positions,
                                                optional<Tensor> weights, int64_t branching, optional<double> scale) {
    at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_op<decltype(hsa_stream_cpu)>("strata::hsa_stream_attention");
    auto [out, lse] = op.call(q, k, v, branching, weights, key_bias, positions, scale);
    torch::autograd::variable_list saved = {
        q, k, v, out, lse, key_bias.value_or(Tensor()), positions.value_or(Tensor()), weights.value_or(Tensor())};
    ctx->save_for_backward(saved);
    ctx->saved_data["branching"] = branching;
    ctx->saved_data["scale"] = scale;
    ctx->set_materialize_grads(false);
    return {out, lse};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto s = ctx->get_saved_variables();
    static const auto op = find_op<decltype(hsa_stream_backward_cpu)>("strata::hsa_stream_attention_backward");
    const Tensor dout = grads[0].defined() ? grads[0] : at::zeros_like(s[3]);
    torch::autograd::variable_list result =
        op.call(dout, optional_tensor(grads[1]), s[0], s[1], s[2], s[3], s[4], ctx->saved_data["branching"].toInt(),
                optional_tensor(s[7]), optional_tensor(s[5]), optional_tensor(s[6]),
                ctx->saved_data["scale"].toOptional<double>());
    for (int at = 3; at < 5; ++at) {
      if (!s[at + 2].defined()) result[at] = Tensor();
    }
    result.resize(8);  // weights, branching, scale
    return result;
  }
};

std::tuple<Tensor, Tensor> hsa_attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, TensorList trees,
                                                  const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                                  const optional<Tensor>& positions, bool causal,
                                                  optional<double> scale) {
  const auto results = HsaForward::apply(q, k, v, weights, key_bias, positions, trees.vec(), causal, scale);
  return {results[0], results[1]};
}

std::tuple<Tensor, Tensor> hsa_stream_autograd(const Tensor& q, const Tensor& k, const Tensor& v, int64_t branching,
                                               const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                               const optional<Tensor>& positions, optional<double> scale) {
  const auto results = HsaStreamForward::apply(q, k, v, key_bias, positions, weights, branching, scale);
  return {results[0], results[1]};
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hsa_attention(Tensor q, Tensor k, Tensor v, Tensor[] trees, *, Tensor? weights=None, Tensor? key_bias=None, "
      "Tensor? positions=None, bool causal=False, float? scale=None) -> (Tensor out, Tensor score)");
  m.def(
      "hsa_attention_backward(Tensor dout, Tensor? dscore, Tensor q, Tensor k, Tensor v, Tensor[] trees, Tensor? "
      "weights, "
      "Tensor? key_bias, Tensor? positions, bool causal, float? scale) -> Tensor[]");
  m.def(
      "hierarchy_score(Tensor q, Tensor k, Tensor[] trees, *, Tensor? weights=None, Tensor? key_bias=None, "
      "Tensor? positions=None, bool causal=False, float? scale=None) -> Tensor");
  m.def(
      "hsa_stream_attention(Tensor q, Tensor k, Tensor v, int branching, *, Tensor? weights=None, Tensor? "
      "key_bias=None, "
      "Tensor? positions=None, float? scale=None) -> (Tensor out, Tensor lse)");
  m.def(
      "hsa_stream_attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "int branching, Tensor? weights, Tensor? key_bias, Tensor? positions, float? scale) -> Tensor[]");
  m.def(
      "hsa_stream_step(Tensor q, Tensor k, Tensor v, Tensor? weight, Tensor? key_bias, Tensor? positions, Tensor(a!) "
      "keys, "
      "Tensor(b!) values, Tensor(c!) kappas, Tensor(d!) masses, Tensor(e!) lengths, *, float? scale=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) {
  m.impl("hsa_attention", hsa_attention_cpu);
  m.impl("hsa_attention_backward", hsa_attention_backward_cpu);
  m.impl("hierarchy_score", hierarchy_score_cpu);
  m.impl("hsa_stream_attention", hsa_stream_cpu);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_cpu);
  m.impl("hsa_stream_step", hsa_stream_step_cpu);
}
TORCH_LIBRARY_IMPL(strata, Meta, m) {
  m.impl("hsa_attention", hsa_attention_meta);
  m.impl("hsa_attention_backward", hsa_attention_backward_meta);
  m.impl("hsa_stream_attention", hsa_stream_meta);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_meta);
}
TORCH_LIBRARY_IMPL(strata, Autograd, m) {
  m.impl("hsa_attention", hsa_attention_autograd);
  m.impl("hsa_attention_backward", hsa_attention_backward_autograd);
  m.impl("hsa_stream_attention", hsa_stream_autograd);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_autograd);
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

std::tuple<Tensor, Tensor> hsa_attention(const Tensor& q, const Tensor& k, const Tensor& v, TensorList trees,
                                         const HsaOptions& o) {
  static const auto op = find_op<decltype(hsa_attention_cpu)>("strata::hsa_attention");
  return op.call(q, k, v, trees, o.weights, o.key_bias, o.positions, o.causal, o.scale);
}

Tensor hierarchy_score(const Tensor& q, const Tensor& k, TensorList trees, const HsaOptions& o) {
  static const auto op = find_op<decltype(hierarchy_score_cpu)>("strata::hierarchy_score");
  return op.call(q, k, trees, o.weights, o.key_bias, o.positions, o.causal, o.scale);
}

Tensor hsa_stream_step(const Tensor& q, const Tensor& k, const Tensor& v, HsaStreamState& s,
                       const HsaStreamOptions& o) {
  static const auto op = find_op<decltype(hsa_stream_step_cpu)>("strata::hsa_stream_step");
  return op.call(q, k, v, o.weights, o.key_bias, o.positions, s.keys, s.values, s.kappas, s.masses, s.lengths, o.scale);
}

std::tuple<Tensor, Tensor> hsa_stream_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const HsaStreamOptions& o) {
  static const auto op = find_op<decltype(hsa_stream_cpu)>("strata::hsa_stream_attention");
  return op.call(q, k, v, o.branching, o.weights, o.key_bias, o.positions, o.scale);
}

}  // namespace strata
