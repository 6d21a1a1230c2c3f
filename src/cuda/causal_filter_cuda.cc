// The causal filter on CUDA: the checks. There is one kind of kernel.
#include "base/causal_filter_check.h"
#include "base/text.h"
#include "cuda/causal_filter_kernels.h"
#include "cuda/cuda_status.h"
#include "cuda/storage.h"
#include "strata/cuda.h"

namespace strata::cuda {

Status causal_filter_forward(const CausalFilter& f, void* y, Stream stream) {
  if (Status s = causal_filter_check(f, y, On::kDevice); !s.ok()) return s;
  if (f.batch * f.tokens == 0) return {};
  return cuda_status(causal_filter_forward_simt(f, y, static_cast<cudaStream_t>(stream)), "causal filter forward");
}

size_t causal_filter_backward_workspace(const CausalFilter& f) { return causal_filter_backward_workspace_simt(f); }

Status causal_filter_backward(const CausalFilter& f, const CausalFilterGradients& g, void* workspace, Stream stream) {
  if (Status s = causal_filter_check(f, g, On::kDevice); !s.ok()) return s;
  if (workspace == nullptr)
    return invalid("workspace: expected causal_filter_backward_workspace() bytes of device memory, got null");
  return cuda_status(causal_filter_backward_simt(f, g, workspace, static_cast<cudaStream_t>(stream)),
                     "causal filter backward");
}

Status pyramid_step(const PyramidStep& p, Stream stream) {
  if (Status s = pyramid_step_check(p, On::kDevice); !s.ok() || p.batch == 0) return s;
  return cuda_status(pyramid_step_simt(p, static_cast<cudaStream_t>(stream)), "pyramid, rows of a new token");
}

Status launch_nothing(Stream stream) {
  return cuda_status(nothing_simt(static_cast<cudaStream_t>(stream)), "a kernel that does nothing");
}

}  // namespace strata::cuda
