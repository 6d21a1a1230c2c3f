// HKT attention as operators: schema, kernels (CPU and CUDA alike) and meta, autograd. A call travels:
//   hkt_attention_autograd    from the dispatcher; saves what the backward needs
//   hkt_attention_kernel      the one check of the tensors; a problem of views of them
//   run_hkt_forward           device and stream
//   strata::hkt_forward       the one check of the problem; the choice of a kernel
#include "torch/hkt_op.h"

#include "strata/hkt.h"
#include "torch/backward_node.h"
#include "torch/compat.h"
#include "torch/hkt_op_check.h"
#include "torch/op_common.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;
using strata::has_open_sizes;

optional<Tensor> as_int64(const optional<Tensor>& lengths) {
  return lengths.has_value() ? optional<Tensor>(lengths->to(at::kLong).contiguous()) : c10::nullopt;
}

// Sizes of a bias with its missing leading axes filled in: (B or 1, H or 1, T or 1, T or 1).
std::vector<int64_t> bias_sizes(const Tensor& bias) {
  std::vector<int64_t> sizes(4 - bias.dim(), 1);
  sizes.insert(sizes.end(), bias.sizes().begin(), bias.sizes().end());
  return sizes;
}

// `weights` and `lengths` must be contiguous and outlive the problem.
HktProblem make_problem(const HktInputs& in, const Tensor& weights, const optional<Tensor>& lengths) {
  HktProblem p;
  p.dtype = dtype_of(in.v);
  p.batch = in.batch();
  p.heads = in.heads();
  p.key_heads = in.v.size(1);
  p.tokens = in.tokens();
  p.levels = static_cast<int>(in.levels());
  p.head_size = static_cast<int>(in.q[0].size(3));
  p.value_size = static_cast<int>(in.v.size(3));
  for (int l = 0; l < p.levels; ++l) {
    p.q[l] = const_view(in.q[l]);
    p.k[l] = const_view(in.k[l]);
  }
  p.v = const_view(in.v);
  p.weights = weights.data_ptr();
  if (lengths.has_value()) p.lengths = lengths->data_ptr<int64_t>();
  if (in.bias.has_value()) p.bias = const_view(in.bias->expand({p.batch, p.heads, p.tokens, p.tokens}));
  p.causal = in.causal;
  p.scale = in.scale;
  p.threads = at::get_num_threads();
  return p;
}

bool has_open_sizes(const HktInputs& in) {
  return has_open_sizes(in.v) || has_open_sizes(in.q) || has_open_sizes(in.k);
}

std::tuple<Tensor, Tensor> empty_outputs(const HktInputs& in) {
  if (!has_open_sizes(in)) check_hkt(in);
  const std::vector<c10::SymInt> rows = {in.v.sym_size(0), in.q[0].sym_size(1), in.v.sym_size(2)};
  return {empty_with_layout(in.v, std::vector<c10::SymInt>{rows[0], rows[1], rows[2], in.v.sym_size(3)}),
          empty_open(rows, in.weights.options())};
}

std::tuple<Tensor, Tensor> hkt_attention_meta(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                              const optional<Tensor>& lengths, const optional<Tensor>& bias,
                                              bool causal, optional<double> scale) {
  return empty_outputs({q, k, v, weights, lengths, bias, causal, scale.value_or(1.0)});
}

std::tuple<Tensor, Tensor> hkt_attention_kernel(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                                const optional<Tensor>& lengths, const optional<Tensor>& bias,
                                                bool causal, optional<double> scale) {
  const HktInputs in{q, k, v, weights, lengths, bias, causal, scale_or_default(scale, q)};
  auto [out, lse] = empty_outputs(in);
  const Tensor dense_weights = weights.contiguous();
  const optional<Tensor> dense_lengths = as_int64(lengths);
  run_hkt_forward(v, make_problem(in, dense_weights, dense_lengths), {view(out), lse.data_ptr()});
  return {out, lse};
}

// Gradients in the order q.., k.., v, weights, bias; the last is an empty tensor when it is not wanted.
std::vector<Tensor> empty_hkt_gradients(const HktInputs& in, bool bias_gradient) {
  if (!has_open_sizes(in)) check_hkt(in);
  std::vector<Tensor> gradients;
  for (const TensorList& list : {in.q, in.k})
    for (const Tensor& t : list) gradients.push_back(empty_with_layout(t, t.sym_sizes()));
  gradients.push_back(empty_with_layout(in.v, in.v.sym_sizes()));
  gradients.push_back(empty_open(in.weights.sym_sizes().vec(), in.weights.options()));
  TORCH_CHECK(!bias_gradient || in.bias.has_value(), "bias_gradient: expected false, because there is no bias");
  gradients.push_back(
      empty_open(bias_gradient ? in.bias->sym_sizes().vec() : std::vector<c10::SymInt>{0}, in.v.options()));
  return gradients;
}

std::vector<Tensor> hkt_attention_backward_meta(const Tensor&, const optional<Tensor>&, TensorList q, TensorList k,
                                                const Tensor& v, const Tensor& weights, const Tensor&, const Tensor&,
                                                const optional<Tensor>& lengths, const optional<Tensor>& bias,
                                                bool causal, optional<double> scale, bool bias_gradient) {
  return empty_hkt_gradients({q, k, v, weights, lengths, bias, causal, scale.value_or(1.0)}, bias_gradient);
}

std::vector<Tensor> hkt_attention_backward_kernel(const Tensor& dout, const optional<Tensor>& dlse, TensorList q,
                                                  TensorList k, const Tensor& v, const Tensor& weights,
                                                  const Tensor& out, const Tensor& lse, const optional<Tensor>& lengths,
                                                  const optional<Tensor>& bias, bool causal, optional<double> scale,
                                                  bool bias_gradient) {
  const HktInputs in{q, k, v, weights, lengths, bias, causal, scale_or_default(scale, q)};
  std::vector<Tensor> gradients = empty_hkt_gradients(in, bias_gradient);
  const Tensor dense_weights = weights.contiguous();
  const optional<Tensor> dense_lengths = as_int64(lengths);
  const Tensor dense_lse = lse.contiguous();
  TORCH_CHECK(dout.sizes() == out.sizes(), "dout: expected shape ", out.sizes(), ", got ", dout.sizes());
  const Tensor typed_dout = dout.to(v.scalar_type());
  const Tensor dense_dlse = dlse.has_value() ? dlse->to(weights.scalar_type()).contiguous() : Tensor();

  HktGradients g;
  g.dout = const_view(typed_dout);
  g.dlse = dense_dlse.defined() ? dense_dlse.data_ptr() : nullptr;
  const int64_t L = in.levels();
  for (int64_t l = 0; l < L; ++l) {
    g.dq[l] = view(gradients[l]);
    g.dk[l] = view(gradients[L + l]);
  }
  g.dv = view(gradients[2 * L]);
  g.dweights = gradients[2 * L + 1].data_ptr();
  Tensor dbias;
  if (bias_gradient) {
    const std::vector<int64_t> sizes = bias_sizes(*bias);
    dbias = at::empty({sizes[0], sizes[1], in.tokens(), in.tokens()}, v.options());
    g.dbias = view(dbias);
    if (sizes[0] == 1) g.dbias.stride[0] = 0;
    if (sizes[1] == 1) g.dbias.stride[1] = 0;
  }
  run_hkt_backward(v, make_problem(in, dense_weights, dense_lengths), {view(out), dense_lse.data_ptr()}, g);
  // The kernel has summed over batch and heads; a bias that broadcasts over tokens is summed here.
  if (bias_gradient) gradients.back() = dbias.sum_to_size(bias_sizes(*bias)).reshape(bias->sizes());
  return gradients;
}

// ------------------------------------------------------------------------------------------------- autograd

// q.., k.., v, weights, bias.
variable_list hkt_inputs(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                         const optional<Tensor>& bias) {
  variable_list inputs(q.begin(), q.end());
  inputs.insert(inputs.end(), k.begin(), k.end());
  inputs.insert(inputs.end(), {v, weights, or_undefined(bias)});
  return inputs;
}

std::vector<Tensor> hkt_attention_backward_autograd(const Tensor& dout, const optional<Tensor>& dlse, TensorList q,
                                                    TensorList k, const Tensor& v, const Tensor& weights,
                                                    const Tensor& out, const Tensor& lse,
                                                    const optional<Tensor>& lengths, const optional<Tensor>& bias,
                                                    bool causal, optional<double> scale, bool bias_gradient) {
  std::vector<Tensor> gradients =
      call_below_autograd("strata::hkt_attention_backward", hkt_attention_backward_kernel, v, dout, dlse, q, k, v,
                          weights, out, lse, lengths, bias, causal, scale, bias_gradient);
  variable_list inputs = hkt_inputs(q, k, v, weights, bias);
  inputs.insert(inputs.end(), {dout, or_undefined(dlse), out, lse});
  refuse_second_derivative("strata::hkt_attention", inputs, gradients);
  return gradients;
}

std::tuple<Tensor, Tensor> hkt_attention_autograd(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                                  const optional<Tensor>& lengths, const optional<Tensor>& bias,
                                                  bool causal, optional<double> scale) {
  auto [out, lse] = call_below_autograd("strata::hkt_attention", hkt_attention_kernel, v, q, k, v, weights, lengths,
                                        bias, causal, scale);
  const bool bias_gradient = bias.has_value() && bias->requires_grad();
  attach_backward("strata::hkt_attention", hkt_inputs(q, k, v, weights, bias), {out, lse}, /*save_outputs=*/true,
                  [lengths, causal, scale, bias_gradient](const variable_list& s, const variable_list& gradients) {
                    static const auto op =
                        find_op<decltype(hkt_attention_backward_kernel)>("strata::hkt_attention_backward");
                    const size_t L = (s.size() - 5) / 2;  // q.., k.., v, weights, bias, out, lse
                    const TensorList all(s);
                    const Tensor &v = s[2 * L], &weights = s[2 * L + 1], &bias = s[2 * L + 2];
                    const Tensor &out = s[2 * L + 3], &lse = s[2 * L + 4];
                    variable_list result = op.call(or_zeros(gradients[0], out), optional_tensor(gradients[1]),
                                                   all.slice(0, L), all.slice(L, L), v, weights, out, lse, lengths,
                                                   optional_tensor(bias), causal, scale, bias_gradient);
                    if (!bias_gradient) result.back() = Tensor();
                    return result;
                  });
  return {out, lse};
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hkt_attention(Tensor[] q, Tensor[] k, Tensor v, Tensor weights, Tensor? lengths=None, Tensor? bias=None, "
      "*, bool causal=False, float? scale=None) -> (Tensor out, Tensor lse)");
  m.def(
      "hkt_attention_backward(Tensor dout, Tensor? dlse, Tensor[] q, Tensor[] k, Tensor v, Tensor weights, Tensor out, "
      "Tensor lse, Tensor? lengths, Tensor? bias, bool causal, float? scale, bool bias_gradient) -> Tensor[]");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) {
  m.impl("hkt_attention", hkt_attention_kernel);
  m.impl("hkt_attention_backward", hkt_attention_backward_kernel);
}
TORCH_LIBRARY_IMPL(strata, CUDA, m) {
  m.impl("hkt_attention", hkt_attention_kernel);
  m.impl("hkt_attention_backward", hkt_attention_backward_kernel);
}
TORCH_LIBRARY_IMPL(strata, Meta, m) {
  m.impl("hkt_attention", hkt_attention_meta);
  m.impl("hkt_attention_backward", hkt_attention_backward_meta);
}
TORCH_LIBRARY_IMPL(strata, Autograd, m) {
  m.impl("hkt_attention", hkt_attention_autograd);
  m.impl("hkt_attention_backward", hkt_attention_backward_autograd);
}

}  // namespace

std::tuple<Tensor, Tensor> hkt_attention(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                         const HktOptions& options) {
  static const auto op = find_op<decltype(hkt_attention_kernel)>("strata::hkt_attention");
  return op.call(q, k, v, weights, options.lengths, options.bias, options.causal, options.scale);
}

}  // namespace strata
