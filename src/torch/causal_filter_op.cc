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

// Packed sequences: tap r of output row m is input row stride m - r, both counted within their sequence. Each tap reads
// an input row at most once, so that its gradient is a sum in a fixed order.
Tensor packed_filter(const Tensor& x, const Tensor& weight, int64_t stride, const Tensor& cu_seqlens) {
  const Tensor begins = packed_begins(cu_seqlens, stride);  // of the input, and of level 1
  const int64_t sequences = begins.size(1), rows = packed_rows(x.size(1), sequences, static_cast<int>(stride) - 1);
  if (sequences == 0 || rows == 0) return x.slice(1, 0, rows) * 0;
  const Tensor in = begins[0], out = begins[stride - 1];
  const Tensor row = at::arange(rows, begins.options());
  const Tensor sequence = at::searchsorted(out, row, /*out_int32=*/false, /*right=*/true) - 1;
  const Tensor place = (row - out.index_select(0, sequence)) * stride, first = in.index_select(0, sequence);
  const Tensor length = (cu_seqlens.slice(0, 1) - cu_seqlens.slice(0, 0, -1)).to(at::kLong).index_select(0, sequence);
  Tensor y;
  for (int64_t r = 0; r < weight.size(0); ++r) {
    const Tensor inside = (place >= r).logical_and(place < length);
    const Tensor at = at::where(inside, first + place - r, at::zeros_like(first));
    const Tensor taps = x.index_select(1, at).masked_fill(inside.logical_not().unsqueeze(1), 0);
    const Tensor term = weight.dim() == 3 ? at::linear(taps, weight[r]) : taps * weight[r];
    y = y.defined() ? y + term : term;
  }
  return y;
}

Tensor causal_filter_composite(const Tensor& x, const Tensor& weight, int64_t stride,
                               const optional<Tensor>& cu_seqlens) {
  check_filter(x, weight, stride);
  if (cu_seqlens.has_value()) {
    TORCH_CHECK(x.size(0) == 1, "x: expected a batch of 1 with cu_seqlens, which packs the sequences, got ", x.size(0));
    const at::ScalarType type = at::result_type(x, weight);
    return packed_filter(x.to(type), weight.to(type), stride, *cu_seqlens);
  }
  if (weight.dim() == 3) return dense_filter(x, weight, stride);
  const at::ScalarType type = at::result_type(x, weight);
  static const auto op = find_op<decltype(depthwise_filter_kernel)>("strata::depthwise_filter");
  return op.call(x.to(type), weight.to(type), stride);
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def("causal_filter(Tensor x, Tensor weight, int stride, Tensor? cu_seqlens=None) -> Tensor",
        causal_filter_composite);
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

Tensor causal_filter(const Tensor& x, const Tensor& weight, int64_t stride, const optional<Tensor>& cu_seqlens) {
  return causal_filter_composite(x, weight, stride, cu_seqlens);
}

}  // namespace strata
