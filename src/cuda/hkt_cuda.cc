// The public calls for HKT on CUDA: check, choose a kernel, launch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "base/hkt_check.h"
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

bool has_mma_kernels(const HktProblem& p) {
  return allowed_kernels() != Kernels::kPlain && (p.dtype == DType::kBFloat16 || p.dtype == DType::kFloat16) &&
         p.levels <= kMmaLevels;
}
bool forward_on_tensor_cores(const HktProblem& p) { return has_mma_kernels(p) && hkt_forward_fits_mma(p); }
bool backward_on_tensor_cores(const HktProblem& p) { return has_mma_kernels(p) && hkt_backward_fits_mma(p); }

cudaError_t run_forward(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  if (!forward_on_tensor_cores(p)) return hkt_forward_plain(p, o, stream);
#ifdef STRATA_HOPPER
  if (use_hopper() && hkt_forward_fits_hopper(p, o)) return hkt_forward_hopper(p, o, stream);
#endif
  return p.dtype == DType::kBFloat16 ? hkt_forward_mma<__nv_bfloat16>(p, o, stream)
                                     : hkt_forward_mma<__half>(p, o, stream);
}

cudaError_t run_backward(const HktProblem& p, const HktOutputs& o, const HktGradients& g, void* workspace,
                         cudaStream_t stream) {
  if (!backward_on_tensor_cores(p)) return hkt_backward_plain(p, o, g, workspace, stream);
  auto* numbers = static_cast<float*>(workspace);
  return p.dtype == DType::kBFloat16 ? hkt_backward_mma<__nv_bfloat16>(p, o, g, numbers, stream)
                                     : hkt_backward_mma<__half>(p, o, g, numbers, stream);
}

Status check_bias_gradient(const HktProblem& p, const HktGradients& g) {
  if (g.dbias.data == nullptr) return {};
  if ((p.batch == 1 || g.dbias.stride[0] != 0) && (p.heads == 1 || g.dbias.stride[1] != 0)) return {};
  return invalid(
      "dbias: on CUDA the gradient of a bias that broadcasts over batch or heads is not computed; expand the "
      "bias, or do not ask for its gradient");
}

}  // namespace

bool hkt_runs_on_tensor_cores(const HktProblem& p) { return forward_on_tensor_cores(p) && backward_on_tensor_cores(p); }

Status hkt_forward(const HktProblem& p, const HktOutputs& o, Stream stream) {
  if (Status s = hkt_check(p, o, On::kDevice); !s.ok()) return s;
  if (p.batch == 0 || p.tokens == 0) return {};
  if (Status s = check_grid(p); !s.ok()) return s;
  return cuda_status(run_forward(p, o, static_cast<cudaStream_t>(stream)), "HKT forward");
}

size_t hkt_backward_workspace(const HktProblem& p) {
  if (!backward_on_tensor_cores(p)) return hkt_backward_workspace_plain(p);
  int64_t parts = hkt_backward_mma_parts(p);
#ifdef STRATA_HOPPER
  parts = std::max(parts, hkt_backward_hopper_parts(p));
#endif
  return static_cast<size_t>(p.batch * p.heads * (p.tokens + parts * kMmaLevels)) * sizeof(float);
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
  return cuda_status(run_backward(p, o, g, workspace, queue), "HKT backward");
}

}  // namespace strata::cuda
