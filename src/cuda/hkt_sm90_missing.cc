// For builds without sm_90a. has_sm90_kernels() is false there, so that nothing calls these.
#include "cuda/hkt_kernels.h"

namespace strata::cuda {

cudaError_t hkt_forward_sm90(const HktProblem&, const HktOutputs&, cudaStream_t) { return cudaErrorNotSupported; }
int64_t hkt_backward_sm90_parts(const HktProblem&) { return 0; }
cudaError_t hkt_backward_sm90(const HktProblem&, const HktOutputs&, const HktGradients&, const float*, float*,
                              cudaStream_t) {
  return cudaErrorNotSupported;
}
size_t hkt_backward_once_workspace(const HktProblem&) { return 0; }
cudaError_t hkt_backward_once(const HktProblem&, const HktOutputs&, const HktGradients&, void*, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace strata::cuda
