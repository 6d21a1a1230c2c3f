// The public calls for HKT on CUDA: check, choose a kernel, launch.
#include "core/hkt_check.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/hkt_cuda_kernels.h"
#include "strata/cuda.h"

namespace strata::cuda {
namespace {

Status check_grid(const HktProblem& p) {
  if (p.batch <= 65535 && p.heads <= 65535) return {};
  return invalid("batch, heads: expected at most 65535 each on CUDA, got ", p.batch, " and ", p.heads,
                 "; split the batch");
}

bool has_tensor_core_kernels(const HktProblem& p) {
  return allowed_kernels() != Kernels::kPlain && (p.dtype == DType::kBFloat16 || p.dtype == DType::kFloat16) &&
         p.levels <= kTensorCoreLevels;
}
bool forward_takes_tensor_cores(const HktProblem& p) {
  return has_tensor_core_kernels(p) && hkt_forward_fits_tensor_cores(p);
}
bool backward_takes_tensor_cores(const HktProblem& p) {
  return has_tensor_core_kernels(p) && hkt_backward_fits_tensor_cores(p);
}

cudaError_t forward_on_tensor_cores(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
#ifdef STRATA_HOPPER
  if (use_hopper() && hkt_forward_fits_hopper(p, o)) return hkt_forward_hopper(p, o, stream);
#endif
  return hkt_forward_tensor_cores(p, o, stream);
}

Status check_bias_gradient(const HktProblem& p, const HktGradients& g) {
  if (g.dbias.data == nullptr) return {};
  if ((p.batch == 1 || g.dbias.stride[0] != 0) && (p.heads == 1 || g.dbias.stride[1] != 0)) return {};
  return invalid(
      "dbias: on CUDA the gradient of a bias that broadcasts over batch or heads is not computed; expand the "
      "bias, or do not ask for its gradient");
}

}  // namespace

bool hkt_runs_on_tensor_cores(const HktProblem& p) {
  return forward_takes_tensor_cores(p) && backward_takes_tensor_cores(p);
}

Status hkt_forward(const HktProblem& p, const HktOutputs& o, Stream stream) {
  if (Status s = hkt_check(p, o, On::kDevice); !s.ok()) return s;
  if (p.batch == 0 || p.tokens == 0) return {};
  if (Status s = check_grid(p); !s.ok()) return s;
  const auto queue = static_cast<cudaStream_t>(stream);
  return cuda_status(
      forward_takes_tensor_cores(p) ? forward_on_tensor_cores(p, o, queue) : hkt_forward_plain(p, o, queue),
      "HKT forward");
}

size_t hkt_backward_workspace(const HktProblem& p) {
  return backward_takes_tensor_cores(p) ? hkt_backward_workspace_tensor_cores(p) : hkt_backward_workspace_plain(p);
}

Status hkt_backward(const HktProblem& p, const HktOutputs& o, const HktGradients& g, void* workspace, Stream stream) {
  if (Status s = hkt_check(p, o, On::kDevice); !s.ok()) return s;
  if (Status s = hkt_check(g, p); !s.ok()) return s;
  if (Status s = check_bias_gradient(p, g); !s.ok()) return s;
  if (Status s = check_grid(p); !s.ok()) return s;
  const auto queue = static_cast<cudaStream_t>(stream);
  if (p.batch == 0 || p.tokens == 0) {
    const size_t number = p.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
    return cuda_status(cudaMemsetAsync(g.dweights, 0, number * p.heads * p.levels, queue), "HKT backward");
  }
  if (workspace == nullptr)
    return invalid("workspace: expected hkt_backward_workspace() bytes of device memory, got null");
  return cuda_status(backward_takes_tensor_cores(p) ? hkt_backward_tensor_cores(p, o, g, workspace, queue)
                                                    : hkt_backward_plain(p, o, g, workspace, queue),
                     "HKT backward");
}

}  // namespace strata::cuda
