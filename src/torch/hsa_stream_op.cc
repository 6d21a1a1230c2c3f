// The streaming form of HSA as operators: schema, CPU, CUDA and meta kernels, autograd, and the decoding step.
#include "strata/hsa_stream.h"
#include "torch/compat.h"
#include "torch/hsa_op.h"
#include "torch/hsa_op_common.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;
using namespace hsa_op;  // NOLINT: the helpers of the two HSA operators

std::tuple<Tensor, Tensor> hsa_stream_meta(const Tensor& q, const Tensor& k, const Tensor& v, int64_t,
                                           const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                           const optional<Tensor>& positions, optional<double>) {
  if (!has_open_sizes({q, k, v})) {
    check_qkv(q, k, v);
    check_terms(q, weights, key_bias, positions);
  }
  return {empty_with_layout(v, v.sym_sizes()), compute_empty({q.sym_size(0), q.sym_size(1), q.sym_size(2)}, q)};
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

std::tuple<Tensor, Tensor> hsa_stream_run(const Tensor& q, const Tensor& k, const Tensor& v, int64_t branching,
                                          const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                          const optional<Tensor>& positions, optional<double> scale) {
  auto [out, lse] = hsa_stream_meta(q, k, v, branching, weights, key_bias, positions, scale);
  const StreamProblem problem(q, k, v, branching, weights, key_bias, positions, scale);
  run_hsa_stream_forward(q, problem.p, {view(out), lse.data_ptr()});
  return {out, lse};
}

std::vector<Tensor> hsa_stream_backward_meta(const Tensor&, const optional<Tensor>&, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const Tensor&, const Tensor&, int64_t,
                                             const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                             const optional<Tensor>& positions, optional<double>) {
  return empty_gradients(q, k, v, weights, key_bias, positions);
}

std::vector<Tensor> hsa_stream_backward_run(const Tensor& dout, const optional<Tensor>& dlse, const Tensor& q,
                                            const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                            int64_t branching, const optional<Tensor>& weights,
                                            const optional<Tensor>& key_bias, const optional<Tensor>& positions,
                                            optional<double> scale) {
  check_qkv(q, k, v);
  check_terms(q, weights, key_bias, positions);
  std::vector<Tensor> gradients =
      hsa_stream_backward_meta(dout, dlse, q, k, v, out, lse, branching, weights, key_bias, positions, scale);
  const StreamProblem problem(q, k, v, branching, weights, key_bias, positions, scale);
  const Tensor typed_dout = dout.to(q.scalar_type()), dense_lse = lse.contiguous();
  const Tensor dense_dlse = dlse.has_value() ? dlse->to(compute_type(q.scalar_type())).contiguous() : Tensor();
  HsaStreamGradients g;
  g.dout = const_view(typed_dout);
  g.dlse = dense_dlse.defined() ? dense_dlse.data_ptr() : nullptr;
  g.dq[0] = view(gradients[0]);
  g.dk[0] = view(gradients[1]);
  g.dv = view(gradients[2]);
  Tensor per_head;
  if (weights.has_value()) {
    per_head = at::empty({q.size(0), q.size(1), q.size(2)}, gradients[3].options());
    g.dweights = head_token_view(per_head);
  }
  if (key_bias.has_value()) g.dkey_bias = head_token_view(gradients[4]);
  if (positions.has_value()) g.dpositions = gradients[5].data_ptr();
  run_hsa_stream_backward(q, problem.p, {view(out), dense_lse.data_ptr()}, g);
  if (weights.has_value()) gradients[3] = per_head.sum(1);
  return gradients;
}

Tensor hsa_stream_step_meta(const Tensor& q, const Tensor&, const Tensor& v, const optional<Tensor>&,
                            const optional<Tensor>&, const optional<Tensor>&, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&, const Tensor&, optional<double>) {
  TORCH_CHECK(q.dim() == 3 && v.dim() == 3, "q, v: expected shape (batch, heads, channels), got ", q.dim(), " and ",
              v.dim(), " dimensions");
  return empty_open({q.sym_size(0), q.sym_size(1), v.sym_size(2)}, q.options());
}

// One decoding step; keys, values, kappas, masses and lengths are updated in place.
Tensor hsa_stream_step_run(const Tensor& q, const Tensor& k, const Tensor& v, const optional<Tensor>& weight,
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
    TORCH_CHECK(cache->is_contiguous(), "cache: expected contiguous tensors, because they are updated in place");
  }
  const Tensor dense_q = q.contiguous(), dense_k = k.contiguous(), dense_v = v.contiguous();
  const optional<Tensor> dense_weight = dense(weight), dense_bias = dense(key_bias), dense_positions = dense(positions);
  const Tensor out = at::empty({B, H, v.size(2)}, q.options());
  HsaStreamStep s;
  s.dtype = dtype_of(q);
  s.batch = B;
  s.heads = s.key_heads = H;
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
  run_hsa_stream_step(q, s);
  return out;
}

// ------------------------------------------------------------------------------------------------- autograd

std::vector<Tensor> hsa_stream_backward_autograd(const Tensor& dout, const optional<Tensor>& dlse, const Tensor& q,
                                                 const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                                 int64_t branching, const optional<Tensor>& weights,
                                                 const optional<Tensor>& key_bias, const optional<Tensor>& positions,
                                                 optional<double> scale) {
  std::vector<Tensor> gradients =
      call_below_autograd("strata::hsa_stream_attention_backward", hsa_stream_backward_run, q, dout, dlse, q, k, v, out,
                          lse, branching, weights, key_bias, positions, scale);
  variable_list inputs = inputs_of(q, k, v, weights, key_bias, positions);
  inputs.insert(inputs.end(), {dout, or_undefined(dlse), out, lse});
  refuse_second_derivative("strata::hsa_stream_attention", inputs, gradients);
  return gradients;
}

std::tuple<Tensor, Tensor> hsa_stream_autograd(const Tensor& q, const Tensor& k, const Tensor& v, int64_t branching,
                                               const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                               const optional<Tensor>& positions, optional<double> scale) {
  auto [out, lse] = call_below_autograd("strata::hsa_stream_attention", hsa_stream_run, q, q, k, v, branching, weights,
                                        key_bias, positions, scale);
  attach_backward("strata::hsa_stream_attention", inputs_of(q, k, v, weights, key_bias, positions), {out, lse},
                  /*save_outputs=*/true, [branching, scale](const variable_list& s, const variable_list& gradients) {
                    static const auto op =
                        find_op<decltype(hsa_stream_backward_run)>("strata::hsa_stream_attention_backward");
                    return of_given(op.call(or_zeros(gradients[0], s[6]), optional_tensor(gradients[1]), s[0], s[1],
                                            s[2], s[6], s[7], branching, optional_tensor(s[3]), optional_tensor(s[4]),
                                            optional_tensor(s[5]), scale),
                                    s);
                  });
  return {out, lse};
}

Tensor hsa_stream_step_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const optional<Tensor>& weight,
                                const optional<Tensor>& key_bias, const optional<Tensor>& positions, const Tensor& keys,
                                const Tensor& values, const Tensor& kappas, const Tensor& masses, const Tensor& lengths,
                                optional<double> scale) {
  variable_list inputs = inputs_of(q, k, v, weight, key_bias, positions);
  inputs.insert(inputs.end(), {keys, values, kappas, masses});
  refuse_gradient("strata::hsa_stream_step", inputs);
  const Tensor out = call_below_autograd("strata::hsa_stream_step", hsa_stream_step_run, q, q, k, v, weight, key_bias,
                                         positions, keys, values, kappas, masses, lengths, scale);
  for (const Tensor* changed : {&keys, &values, &kappas, &masses, &lengths}) {
    if (!changed->is_inference()) changed->unsafeGetTensorImpl()->bump_version();
  }
  return out;
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hsa_stream_attention(Tensor q, Tensor k, Tensor v, int branching, Tensor? weights=None, Tensor? key_bias=None, "
      "Tensor? positions=None, *, float? scale=None) -> (Tensor out, Tensor lse)");
  m.def(
      "hsa_stream_attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "int branching, Tensor? weights, Tensor? key_bias, Tensor? positions, float? scale) -> Tensor[]");
  m.def(
      "hsa_stream_step(Tensor q, Tensor k, Tensor v, Tensor? weight, Tensor? key_bias, Tensor? positions, "
      "Tensor(a!) keys, Tensor(b!) values, Tensor(c!) kappas, Tensor(d!) masses, Tensor(e!) lengths, *, "
      "float? scale=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) {
  m.impl("hsa_stream_attention", hsa_stream_run);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_run);
  m.impl("hsa_stream_step", hsa_stream_step_run);
}
TORCH_LIBRARY_IMPL(strata, CUDA, m) {
  m.impl("hsa_stream_attention", hsa_stream_run);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_run);
  m.impl("hsa_stream_step", hsa_stream_step_run);
}
TORCH_LIBRARY_IMPL(strata, Meta, m) {
  m.impl("hsa_stream_attention", hsa_stream_meta);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_meta);
  m.impl("hsa_stream_step", hsa_stream_step_meta);
}
TORCH_LIBRARY_IMPL(strata, Autograd, m) {
  m.impl("hsa_stream_attention", hsa_stream_autograd);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_autograd);
  m.impl("hsa_stream_step", hsa_stream_step_autograd);
}

}  // namespace

Tensor hsa_stream_step(const Tensor& q, const Tensor& k, const Tensor& v, HsaStreamState& s,
                       const HsaStreamOptions& o) {
  static const auto op = find_op<decltype(hsa_stream_step_run)>("strata::hsa_stream_step");
  return op.call(q, k, v, o.weights, o.key_bias, o.positions, s.keys, s.values, s.kappas, s.masses, s.lengths, o.scale);
}

std::tuple<Tensor, Tensor> hsa_stream_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const HsaStreamOptions& o) {
  static const auto op = find_op<decltype(hsa_stream_run)>("strata::hsa_stream_attention");
  return op.call(q, k, v, o.branching, o.weights, o.key_bias, o.positions, o.scale);
}

}  // namespace strata
