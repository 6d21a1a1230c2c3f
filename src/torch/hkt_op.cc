// The operators: schema, kernels (CPU and CUDA alike) and meta, autograd. A call travels: hkt_attention (dispatcher,
// autograd) -> hkt_attention_kernel (views of the tensors) -> run_hkt_forward (device, stream) -> strata::hkt_forward
// (checks, dispatch by instruction set) -> kernel.
#include "torch/hkt_op.h"

#include "strata/hkt.h"
#include "torch/compat.h"
#include "torch/hkt_op_check.h"
#include "torch/op_common.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;

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

std::tuple<Tensor, Tensor> empty_outputs(const HktInputs& in) {
  check_hkt(in);
  return {empty_with_layout(in.v, {in.batch(), in.heads(), in.tokens(), in.v.size(3)}),
          at::empty({in.batch(), in.heads(), in.tokens()}, in.weights.options())};
}

std::tuple<Tensor, Tensor> hkt_attention_meta(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                              const optional<Tensor>& lengths, const optional<Tensor>& bias,
                                              bool causal, optional<double> scale) {
  return empty_outputs({q, k, v, weights, lengths, bias, causal, scale_or_default(scale, q)});
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
  check_hkt(in);
  std::vector<Tensor> gradients;
  for (const TensorList& list : {in.q, in.k})
    for (const Tensor& t : list) gradients.push_back(empty_with_layout(t, t.sizes()));
  gradients.push_back(empty_with_layout(in.v, in.v.sizes()));
  gradients.push_back(at::empty(in.weights.sizes(), in.weights.options()));
  TORCH_CHECK(!bias_gradient || in.bias.has_value(), "bias_gradient: expected false, because there is no bias");
  gradients.push_back(at::empty(bias_gradient ? in.bias->sizes() : at::IntArrayRef{0}, in.v.options()));
  return gradients;
}

std::vector<Tensor> hkt_attention_backward_meta(const Tensor&, const optional<Tensor>&, TensorList q, TensorList k,
                                                const Tensor& v, const Tensor& weights, const Tensor&, const Tensor&,
                                                const optional<Tensor>& lengths, const optional<Tensor>& bias,
                                                bool causal, optional<double> scale, bool bias_gradient) {
  return empty_hkt_gradients({q, k, v, weights, lengths, bias, causal, scale_or_default(scale, q)}, bias_gradient);
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

Tensor empty_decoded(TensorList q, const Tensor& v) {
  return at::empty({v.size(0), q[0].size(1), 1, v.size(3)}, v.options());
}

void check_decode(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths) {
  TORCH_CHECK(!q.empty() && static_cast<int64_t>(q.size()) <= kMaxLevels && k.size() == q.size(),
              "q, k: expected lists of 1 to ", kMaxLevels, " tensors, one per level, got ", q.size(), " and ",
              k.size());
  TORCH_CHECK(v.dim() == 4, "v: expected 4 dimensions (batch, key heads, capacity, channels), got shape ", v.sizes());
  for (size_t l = 0; l < q.size(); ++l) {
    TORCH_CHECK(q[l].dim() == 4 && q[l].size(0) == v.size(0) && q[l].size(2) == 1 && q[l].sizes() == q[0].sizes(), "q[",
                l, "]: expected shape (", v.size(0), ", heads, 1, channels), alike on all levels, got ", q[l].sizes());
    TORCH_CHECK(
        k[l].dim() == 4 && k[l].size(0) == v.size(0) && k[l].size(1) == v.size(1) && k[l].size(3) == q[0].size(3), "k[",
        l, "]: expected shape (", v.size(0), ", ", v.size(1), ", capacity, ", q[0].size(3), "), got ", k[l].sizes());
    TORCH_CHECK(q[l].scalar_type() == v.scalar_type() && k[l].scalar_type() == v.scalar_type(), "q[", l, "], k[", l,
                "]: expected ", v.scalar_type(), " like v, got ", q[l].scalar_type(), " and ", k[l].scalar_type());
  }
  TORCH_CHECK(
      weights.dim() == 2 && weights.size(0) == q[0].size(1) && weights.size(1) == static_cast<int64_t>(q.size()),
      "weights: expected shape (", q[0].size(1), ", ", q.size(), "), got ", weights.sizes());
  TORCH_CHECK(weights.scalar_type() == (v.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
              "weights: expected float64 with float64 inputs and float32 otherwise, got ", weights.scalar_type());
  TORCH_CHECK(lengths.dim() == 1 && lengths.size(0) == v.size(0), "lengths: expected shape (", v.size(0), "), got ",
              lengths.sizes());
}

Tensor hkt_decode_meta(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths,
                       optional<double>) {
  check_decode(q, k, v, weights, lengths);
  return empty_decoded(q, v);
}

Tensor hkt_decode_cpu(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths,
                      optional<double> scale) {
  check_decode(q, k, v, weights, lengths);
  const Tensor out = empty_decoded(q, v);
  const Tensor dense_weights = weights.contiguous();
  const Tensor dense_lengths = lengths.to(at::kLong).contiguous();
  if (v.size(0) > 0) {
    const int64_t longest = dense_lengths.max().item<int64_t>();
    for (size_t l = 0; l < q.size(); ++l) {
      const int64_t rows = hkt_level_tokens(longest, static_cast<int>(l));
      TORCH_CHECK(k[l].size(2) >= rows && v.size(2) >= longest, "lengths: ", longest, " tokens need ", rows,
                  " cached keys on level ", l, " and ", longest, " values, got ", k[l].size(2), " and ", v.size(2));
    }
  }
  HktDecode d;
  d.dtype = dtype_of(v);
  d.batch = v.size(0);
  d.heads = q[0].size(1);
  d.key_heads = v.size(1);
  d.levels = static_cast<int>(q.size());
  d.head_size = static_cast<int>(q[0].size(3));
  d.value_size = static_cast<int>(v.size(3));
  for (int l = 0; l < d.levels; ++l) {
    d.q[l] = const_view(q[l]);
    d.k[l] = const_view(k[l]);
  }
  d.v = const_view(v);
  d.weights = dense_weights.data_ptr();
  d.lengths = dense_lengths.data_ptr<int64_t>();
  d.scale = scale_or_default(scale, q);
  d.threads = at::get_num_threads();
  d.out = view(out);
  throw_if_failed(strata::hkt_decode(d));
  return out;
}

// There is no CUDA kernel for single steps yet.
Tensor hkt_decode_cuda(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths,
                       optional<double> scale) {
  check_decode(q, k, v, weights, lengths);
  TORCH_WARN_ONCE("strata::hkt_decode has no CUDA kernel: single steps are computed on the CPU");
  auto to_cpu = [](TensorList list) {
    std::vector<Tensor> there;
    for (const Tensor& t : list) there.push_back(t.cpu());
    return there;
  };
  return hkt_decode_cpu(to_cpu(q), to_cpu(k), v.cpu(), weights.cpu(), lengths.cpu(), scale).to(v.device());
}

// Composite: torch differentiates it, and it runs on any device.
Tensor causal_filter_composite(const Tensor& x, const Tensor& weight, int64_t stride) {
  TORCH_CHECK(x.dim() == 3, "x: expected 3 dimensions (batch, tokens, channels), got shape ", x.sizes());
  TORCH_CHECK(stride == 1 || stride == 2, "stride: expected 1 or 2, got ", stride);
  const int64_t C = x.size(2);
  const bool dense = weight.dim() == 3;
  TORCH_CHECK((weight.dim() == 2 || dense) && weight.size(0) >= 1 && weight.size(1) == C && weight.size(-1) == C,
              "weight: expected shape (taps, ", C, ") or (taps, ", C, ", ", C, "), got ", weight.sizes());
  const int64_t taps = weight.size(0);
  const int64_t rows = (x.size(1) + stride - 1) / stride;
  const Tensor padded = at::constant_pad_nd(x, {0, 0, taps - 1, 0});
  Tensor y;
  for (int64_t r = 0; r < taps; ++r) {
    const int64_t first = taps - 1 - r;
    const Tensor inputs = padded.slice(1, first, first + std::max<int64_t>(0, (rows - 1) * stride + 1), stride);
    const Tensor term = dense ? at::linear(inputs, weight[r]) : inputs * weight[r];
    y = y.defined() ? y + term : term;
  }
  return y;
}

// ------------------------------------------------------------------------------------------------- autograd

// The backward is an operator of its own, so that compilers can see it. Differentiating it again is refused.
class HktBackward : public torch::autograd::Function<HktBackward> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext*, TensorList tensors, int64_t levels,
                                                optional<Tensor> dlse, optional<Tensor> lengths, optional<Tensor> bias,
                                                bool causal, double scale, bool bias_gradient) {
    at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_op<decltype(hkt_attention_backward_kernel)>("strata::hkt_attention_backward");
    const size_t L = levels;
    return op.call(tensors[0], dlse, tensors.slice(5, L), tensors.slice(5 + L, L), tensors[1], tensors[2], tensors[3],
                   tensors[4], lengths, bias, causal, scale, bias_gradient);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    TORCH_CHECK(false,
                "strata::hkt_attention cannot be differentiated twice; use "
                "first-order gradients, or compose the attention from torch operators where you need the second");
  }
};

std::vector<Tensor> hkt_attention_backward_autograd(const Tensor& dout, const optional<Tensor>& dlse, TensorList q,
                                                    TensorList k, const Tensor& v, const Tensor& weights,
                                                    const Tensor& out, const Tensor& lse,
                                                    const optional<Tensor>& lengths, const optional<Tensor>& bias,
                                                    bool causal, optional<double> scale, bool bias_gradient) {
  std::vector<Tensor> tensors = {dout, v, weights, out, lse};
  tensors.insert(tensors.end(), q.begin(), q.end());
  tensors.insert(tensors.end(), k.begin(), k.end());
  return HktBackward::apply(TensorList(tensors), static_cast<int64_t>(q.size()), dlse, lengths, bias, causal,
                            scale_or_default(scale, q), bias_gradient);
}

class HktForward : public torch::autograd::Function<HktForward> {
 public:
  // tensors: q.., k.., v, weights
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, TensorList tensors,
                                                optional<Tensor> bias, optional<Tensor> lengths, bool causal,
                                                double scale) {
    at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_op<decltype(hkt_attention_kernel)>("strata::hkt_attention");
    const size_t L = (tensors.size() - 2) / 2;
    auto [out, lse] = op.call(tensors.slice(0, L), tensors.slice(L, L), tensors[2 * L], tensors[2 * L + 1], lengths,
                              bias, causal, scale);
    torch::autograd::variable_list saved(tensors.begin(), tensors.end());
    saved.insert(saved.end(), {out, lse, bias.value_or(Tensor()), lengths.value_or(Tensor())});
    ctx->save_for_backward(saved);
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["bias_gradient"] = bias.has_value() && bias->requires_grad();
    ctx->set_materialize_grads(false);
    return {out, lse};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const size_t inputs = saved.size() - 4;
    const size_t L = (inputs - 2) / 2;
    const TensorList all(saved);
    const Tensor& out = saved[inputs];
    auto optional_tensor = [](const Tensor& t) { return t.defined() ? optional<Tensor>(t) : c10::nullopt; };
    const Tensor dout = grads[0].defined() ? grads[0] : at::zeros_like(out);
    static const auto op = find_op<decltype(hkt_attention_backward_kernel)>("strata::hkt_attention_backward");
    const bool bias_gradient = ctx->saved_data["bias_gradient"].toBool();
    torch::autograd::variable_list result =
        op.call(dout, optional_tensor(grads[1]), all.slice(0, L), all.slice(L, L), saved[2 * L], saved[2 * L + 1], out,
                saved[inputs + 1], optional_tensor(saved[inputs + 3]), optional_tensor(saved[inputs + 2]),
                ctx->saved_data["causal"].toBool(), ctx->saved_data["scale"].toDouble(), bias_gradient);
    if (!bias_gradient) result.back() = Tensor();
    result.resize(result.size() + 3);  // lengths, causal, scale
    return result;
  }
};

std::tuple<Tensor, Tensor> hkt_attention_autograd(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                                  const optional<Tensor>& lengths, const optional<Tensor>& bias,
                                                  bool causal, optional<double> scale) {
  check_hkt({q, k, v, weights, lengths, bias, causal, 1.0});
  std::vector<Tensor> tensors(q.begin(), q.end());
  tensors.insert(tensors.end(), k.begin(), k.end());
  tensors.insert(tensors.end(), {v, weights});
  const auto results = HktForward::apply(TensorList(tensors), bias, lengths, causal, scale_or_default(scale, q));
  return {results[0], results[1]};
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hkt_attention(Tensor[] q, Tensor[] k, Tensor v, Tensor weights, *, Tensor? lengths=None, Tensor? bias=None, "
      "bool causal=False, float? scale=None) -> (Tensor out, Tensor lse)");
  m.def(
      "hkt_attention_backward(Tensor dout, Tensor? dlse, Tensor[] q, Tensor[] k, Tensor v, Tensor weights, Tensor out, "
      "Tensor lse, Tensor? lengths, Tensor? bias, bool causal, float? scale, bool bias_gradient) -> Tensor[]");
  m.def("hkt_decode(Tensor[] q, Tensor[] k, Tensor v, Tensor weights, Tensor lengths, *, float? scale=None) -> Tensor");
  m.def("causal_filter(Tensor x, Tensor weight, int stride) -> Tensor", causal_filter_composite);
}
TORCH_LIBRARY_IMPL(strata, CPU, m) {
  m.impl("hkt_attention", hkt_attention_kernel);
  m.impl("hkt_attention_backward", hkt_attention_backward_kernel);
  m.impl("hkt_decode", hkt_decode_cpu);
}
TORCH_LIBRARY_IMPL(strata, CUDA, m) {
  m.impl("hkt_attention", hkt_attention_kernel);
  m.impl("hkt_attention_backward", hkt_attention_backward_kernel);
  m.impl("hkt_decode", hkt_decode_cuda);
}
TORCH_LIBRARY_IMPL(strata, Meta, m) {
  m.impl("hkt_attention", hkt_attention_meta);
  m.impl("hkt_attention_backward", hkt_attention_backward_meta);
  m.impl("hkt_decode", hkt_decode_meta);
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

Tensor hkt_decode(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths,
                  optional<double> scale) {
  static const auto op = find_op<decltype(hkt_decode_cpu)>("strata::hkt_decode");
  return op.call(q, k, v, weights, lengths, scale);
}

Tensor causal_filter(const Tensor& x, const Tensor& weight, int64_t stride) {
  static const auto op = find_op<decltype(causal_filter_composite)>("strata::causal_filter");
  return op.call(x, weight, stride);
}

}  // namespace strata
