// The causal filter as operators. Depthwise filters have kernels (strata/pyramid.h); a dense filter is one matrix
// product over windows of `taps` tokens, which torch multiplies and differentiates.
#include "strata/pyramid.h"
#include "torch/backward_node.h"
#include "torch/compat.h"
#include "torch/hkt_op.h"
#include "torch/op_common.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;

void check_filter(const Tensor& x, const Tensor& weight, int64_t stride) {
  TORCH_CHECK(x.dim() == 3, "x: expected 3 dimensions (batch, tokens, channels), got shape ", x.sizes());
  TORCH_CHECK(stride == 1 || stride == 2, "stride: expected 1 or 2, got ", stride);
  if (has_open_sizes({x, weight})) return;
  const int64_t C = x.size(2);
  TORCH_CHECK(
      (weight.dim() == 2 || weight.dim() == 3) && weight.size(0) >= 1 && weight.size(1) == C && weight.size(-1) == C,
      "weight: expected shape (taps, ", C, ") or (taps, ", C, ", ", C, "), got ", weight.sizes());
}

CausalFilter make_filter(const Tensor& x, const Tensor& weight, int64_t stride) {
  CausalFilter f;
  f.dtype = dtype_of(x);
  f.batch = x.size(0);
  f.tokens = x.size(1);
  f.channels = x.size(2);
  f.taps = static_cast<int>(weight.size(0));
  f.stride = static_cast<int>(stride);
  f.x = x.data_ptr();
  f.weight = weight.data_ptr();
  f.threads = at::get_num_threads();
  return f;
}

Tensor depthwise_filter_meta(const Tensor& x, const Tensor& weight, int64_t stride) {
  check_dtype("x", x);
  if (!has_open_sizes({x, weight})) check_tensor("weight", weight, {weight.size(0), x.size(2)}, x.scalar_type(), x);
  const c10::SymInt tokens = x.sym_size(1);  // filtered_tokens, of sizes that may be open
  return empty_open({x.sym_size(0), stride == 1 ? tokens : (tokens + (stride - 1)) / stride, x.sym_size(2)},
                    x.options());
}

Tensor depthwise_filter_kernel(const Tensor& x, const Tensor& weight, int64_t stride) {
  const Tensor y = depthwise_filter_meta(x, weight, stride), dense_x = x.contiguous(),
               dense_weight = weight.contiguous();
  run_causal_filter_forward(x, make_filter(dense_x, dense_weight, stride), y.data_ptr());
  return y;
}

std::tuple<Tensor, Tensor> depthwise_filter_backward_meta(const Tensor&, const Tensor& x, const Tensor& weight,
                                                          int64_t) {
  return {empty_open(x.sym_sizes().vec(), x.options()), empty_open(weight.sym_sizes().vec(), weight.options())};
}

std::tuple<Tensor, Tensor> depthwise_filter_backward_kernel(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                            int64_t stride) {
  auto [dx, dweight] = depthwise_filter_backward_meta(dy, x, weight, stride);
  const Tensor dense_x = x.contiguous(), dense_weight = weight.contiguous();
  const Tensor dense_dy = dy.to(x.scalar_type()).contiguous();
  run_causal_filter_backward(x, make_filter(dense_x, dense_weight, stride),
                             {dense_dy.data_ptr(), dx.data_ptr(), dweight.data_ptr()});
  return {dx, dweight};
}

std::tuple<Tensor, Tensor> depthwise_filter_backward_autograd(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                              int64_t stride) {
  auto [dx, dweight] = call_below_autograd("strata::depthwise_filter_backward", depthwise_filter_backward_kernel, x, dy,
                                           x, weight, stride);
  refuse_second_derivative("strata::causal_filter", {dy, x, weight}, {dx, dweight});
  return {dx, dweight};
}

Tensor depthwise_filter_autograd(const Tensor& x, const Tensor& weight, int64_t stride) {
  const Tensor y = call_below_autograd("strata::depthwise_filter", depthwise_filter_kernel, x, x, weight, stride);
  attach_backward("strata::causal_filter", {x, weight}, {y}, /*save_outputs=*/false,
                  [stride](const variable_list& saved, const variable_list& gradients) -> variable_list {
                    static const auto op =
                        find_op<decltype(depthwise_filter_backward_kernel)>("strata::depthwise_filter_backward");
                    if (!gradients[0].defined()) return {Tensor(), Tensor()};
                    auto [dx, dweight] = op.call(gradients[0], saved[0], saved[1], stride);
                    return {dx, dweight};
                  });
  return y;
}

// weight: (taps, C, C), output channel first. Window m has tokens stride m - taps + 1 .. stride m, so that tap r meets
// the (taps - 1 - r)-th of them.
Tensor dense_filter(const Tensor& x, const Tensor& weight, int64_t stride) {
  const int64_t taps = weight.size(0);
  const c10::SymInt C = x.sym_size(2);
  if (x.sym_size(1) == 0) return at::empty_like(x);
  const Tensor padded = at::constant_pad_nd(x, {0, 0, taps - 1, 0});
  const Tensor windows = padded.unfold(1, taps, stride).transpose(2, 3);  // (B, rows, taps, C)
  const std::vector<c10::SymInt> rows = {x.sym_size(0), windows.sym_size(1), C * taps}, matrix = {C, C * taps};
  return at::linear(windows.reshape_symint(rows), weight.flip(0).permute({1, 0, 2}).reshape_symint(matrix));
}

Tensor causal_filter_composite(const Tensor& x, const Tensor& weight, int64_t stride) {
  check_filter(x, weight, stride);
  if (weight.dim() == 3) return dense_filter(x, weight, stride);
  const at::ScalarType type = at::result_type(x, weight);
  static const auto op = find_op<decltype(depthwise_filter_kernel)>("strata::depthwise_filter");
  return op.call(x.to(type), weight.to(type), stride);
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def("causal_filter(Tensor x, Tensor weight, int stride) -> Tensor", causal_filter_composite);
  m.def("depthwise_filter(Tensor x, Tensor weight, int stride) -> Tensor");
  m.def("depthwise_filter_backward(Tensor dy, Tensor x, Tensor weight, int stride) -> (Tensor dx, Tensor dweight)");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) {
  m.impl("depthwise_filter", depthwise_filter_kernel);
  m.impl("depthwise_filter_backward", depthwise_filter_backward_kernel);
}
TORCH_LIBRARY_IMPL(strata, CUDA, m) {
  m.impl("depthwise_filter", depthwise_filter_kernel);
  m.impl("depthwise_filter_backward", depthwise_filter_backward_kernel);
}
TORCH_LIBRARY_IMPL(strata, Meta, m) {
  m.impl("depthwise_filter", depthwise_filter_meta);
  m.impl("depthwise_filter_backward", depthwise_filter_backward_meta);
}
TORCH_LIBRARY_IMPL(strata, Autograd, m) {
  m.impl("depthwise_filter", depthwise_filter_autograd);
  m.impl("depthwise_filter_backward", depthwise_filter_backward_autograd);
}

}  // namespace

Tensor causal_filter(const Tensor& x, const Tensor& weight, int64_t stride) {
  return causal_filter_composite(x, weight, stride);
}

}  // namespace strata
