// The certificate of the streaming form as an operator.
#include "torch/compat.h"
#include "torch/hsa_op.h"
#include "torch/hsa_stream_problem.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;
using namespace hsa_op;  // NOLINT: the helpers of the HSA operators

Tensor certificate_meta(TensorList q, TensorList k, int64_t branching, const optional<Tensor>& weights,
                        const optional<Tensor>& key_bias, const optional<Tensor>& level_weights, int64_t near,
                        bool both_sides, optional<double>) {
  const optional<Tensor> none;
  const HsaInputs in{q, k, none, weights, key_bias, none, level_weights};
  if (!in.has_open_sizes()) check_stream(in, {branching, near, both_sides});
  return compute_empty({q[0].sym_size(0), q[0].sym_size(1), q[0].sym_size(2)}, q[0]);
}

Tensor certificate_run(TensorList q, TensorList k, int64_t branching, const optional<Tensor>& weights,
                       const optional<Tensor>& key_bias, const optional<Tensor>& level_weights, int64_t near,
                       bool both_sides, optional<double> scale) {
  const Tensor bound = certificate_meta(q, k, branching, weights, key_bias, level_weights, near, both_sides, scale);
  const optional<Tensor> none;
  const StreamProblem problem({q, k, none, weights, key_bias, none, level_weights}, {branching, near, both_sides},
                              scale);
  run_hsa_stream_certificate(q[0], problem.p, bound.data_ptr());
  return bound;
}

// It has no gradient.
Tensor certificate_autograd(TensorList q, TensorList k, int64_t branching, const optional<Tensor>& weights,
                            const optional<Tensor>& key_bias, const optional<Tensor>& level_weights, int64_t near,
                            bool both_sides, optional<double> scale) {
  return call_below_autograd("strata::hsa_stream_certificate", certificate_run, q[0], q, k, branching, weights,
                             key_bias, level_weights, near, both_sides, scale);
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hsa_stream_certificate(Tensor[] q, Tensor[] k, int branching, Tensor? weights=None, Tensor? key_bias=None, "
      "Tensor? level_weights=None, *, int near=1, bool both_sides=False, float? scale=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) { m.impl("hsa_stream_certificate", certificate_run); }
TORCH_LIBRARY_IMPL(strata, CUDA, m) { m.impl("hsa_stream_certificate", certificate_run); }
TORCH_LIBRARY_IMPL(strata, Meta, m) { m.impl("hsa_stream_certificate", certificate_meta); }
TORCH_LIBRARY_IMPL(strata, Autograd, m) { m.impl("hsa_stream_certificate", certificate_autograd); }

}  // namespace

Tensor hsa_stream_certificate(TensorList q, TensorList k, const HsaStreamOptions& o) {
  static const auto op = find_op<decltype(certificate_run)>("strata::hsa_stream_certificate");
  return op.call(q, k, o.branching, o.weights, o.key_bias, o.level_weights, o.near, o.both_sides, o.scale);
}

}  // namespace strata
