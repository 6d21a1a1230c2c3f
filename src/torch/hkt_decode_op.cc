// One decoding step of HKT attention as an operator.
#include "strata/hkt.h"
#include "torch/backward_node.h"
#include "torch/compat.h"
#include "torch/hkt_op.h"
#include "torch/hkt_op_check.h"
#include "torch/op_common.h"

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
  if (!has_open_sizes(v) && !has_open_sizes(q) && !has_open_sizes(k)) check_decode(q, k, v, weights, lengths);
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

Tensor hkt_decode_autograd(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths,
                           optional<double> scale) {
  variable_list inputs(q.begin(), q.end());
  inputs.insert(inputs.end(), k.begin(), k.end());
  inputs.insert(inputs.end(), {v, weights});
  refuse_gradient("strata::hkt_decode", inputs);
  at::AutoDispatchBelowADInplaceOrView below;
  return hkt_decode(q, k, v, weights, lengths, scale);
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def("hkt_decode(Tensor[] q, Tensor[] k, Tensor v, Tensor weights, Tensor lengths, *, float? scale=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) { m.impl("hkt_decode", hkt_decode_cpu); }
TORCH_LIBRARY_IMPL(strata, CUDA, m) { m.impl("hkt_decode", hkt_decode_cuda); }
TORCH_LIBRARY_IMPL(strata, Meta, m) { m.impl("hkt_decode", hkt_decode_meta); }
TORCH_LIBRARY_IMPL(strata, Autograd, m) { m.impl("hkt_decode", hkt_decode_autograd); }

}  // namespace

Tensor hkt_decode(TensorList q, TensorList k, const Tensor& v, const Tensor& weights, const Tensor& lengths,
                  optional<double> scale) {
  static const auto op = find_op<decltype(hkt_decode_cpu)>("strata::hkt_decode");
  return op.call(q, k, v, weights, lengths, scale);
}

}  // namespace strata
