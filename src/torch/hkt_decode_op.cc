// One decoding step of HKT attention as an operator.
#include "strata/hkt.h"
#include "torch/backward_node.h"
#include "torch/compat.h"
#include "torch/hkt_op.h"
#include "torch/hkt_op_check.h"
#include "torch/op_common.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;

Tensor empty_decoded(TensorList q, const Tensor& v) {
  return empty_open({v.sym_size(0), q[0].sym_size(1), 1, v.sym_size(3)}, v.options());
}

void check_decode(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths) {
  TORCH_CHECK(!q.empty() && static_cast<int64_t>(q.size()) <= kMaxLevels && k.size() == q.size(),
              "q, k: expected lists of 1 to ", kMaxLevels, " tensors, one per level, got ", q.size(), " and ",
              k.size());
  TORCH_CHECK(v.dim() == 4 && v.size(2) >= 1, "v: expected shape (batch, key heads, 1 or more slots, channels), got ",
              v.sizes());
  for (size_t l = 0; l < q.size(); ++l) {
    TORCH_CHECK(q[l].dim() == 4 && q[l].size(0) == v.size(0) && q[l].size(1) == q[0].size(1) && q[l].size(2) >= 1 &&
                    q[l].size(3) == q[0].size(3),
                "q[", l, "]: expected shape (", v.size(0),
                ", heads, 1 or more slots, channels), with the same heads and "
                "channels on all levels, got ",
                q[l].sizes());
    TORCH_CHECK(k[l].dim() == 4 && k[l].size(0) == v.size(0) && k[l].size(1) == v.size(1) && k[l].size(2) >= 1 &&
                    k[l].size(3) == q[0].size(3),
                "k[", l, "]: expected shape (", v.size(0), ", ", v.size(1), ", 1 or more slots, ", q[0].size(3),
                "), got ", k[l].sizes());
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
                       optional<double>, int64_t) {
  if (!has_open_sizes(v) && !has_open_sizes(q) && !has_open_sizes(k)) check_decode(q, k, v, weights, lengths);
  return empty_decoded(q, v);
}

Tensor hkt_decode_run(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths,
                      optional<double> scale, int64_t window) {
  check_decode(q, k, v, weights, lengths);
  const Tensor out = empty_decoded(q, v);
  const Tensor dense_weights = weights.contiguous();
  const Tensor dense_lengths = lengths.to(at::kLong).contiguous();
  HktDecode d;
  d.dtype = dtype_of(v);
  d.batch = v.size(0);
  d.heads = q[0].size(1);
  d.key_heads = v.size(1);
  d.levels = static_cast<int>(q.size());
  d.head_size = static_cast<int>(q[0].size(3));
  d.value_size = static_cast<int>(v.size(3));
  for (int l = 0; l < d.levels; ++l) {
    d.q[l] = const_view(q[l]), d.query_slots[l] = q[l].size(2);
    d.k[l] = const_view(k[l]), d.key_slots[l] = k[l].size(2);
  }
  d.v = const_view(v), d.value_slots = v.size(2);
  d.window = window;
  d.weights = dense_weights.data_ptr();
  d.lengths = dense_lengths.data_ptr<int64_t>();
  d.scale = scale_or_default(scale, q);
  d.threads = at::get_num_threads();
  d.out = view(out);
  run_hkt_decode(v, d);
  return out;
}

Tensor hkt_decode_autograd(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths,
                           optional<double> scale, int64_t window) {
  variable_list inputs(q.begin(), q.end());
  inputs.insert(inputs.end(), k.begin(), k.end());
  inputs.insert(inputs.end(), {v, weights});
  refuse_gradient("strata::hkt_decode", inputs);
  return call_below_autograd("strata::hkt_decode", hkt_decode_run, v, q, k, v, weights, lengths, scale, window);
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hkt_decode(Tensor[] q, Tensor[] k, Tensor v, Tensor weights, Tensor lengths, *, float? scale=None, "
      "int window=-1) -> Tensor");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) { m.impl("hkt_decode", hkt_decode_run); }
TORCH_LIBRARY_IMPL(strata, CUDA, m) { m.impl("hkt_decode", hkt_decode_run); }
TORCH_LIBRARY_IMPL(strata, Meta, m) { m.impl("hkt_decode", hkt_decode_meta); }
TORCH_LIBRARY_IMPL(strata, Autograd, m) { m.impl("hkt_decode", hkt_decode_autograd); }

}  // namespace

Tensor hkt_decode(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths,
                  optional<double> scale, int64_t window) {
  static const auto op = find_op<decltype(hkt_decode_run)>("strata::hkt_decode");
  return op.call(q, k, v, weights, lengths, scale, window);
}

}  // namespace strata
