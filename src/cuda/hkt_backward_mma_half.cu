// One storage type a file: these kernels take long to compile.
#include "cuda/hkt_backward_mma.cuh"

namespace strata::cuda {

template cudaError_t hkt_backward_mma<__half>(const HktProblem&, const HktOutputs&, const HktGradients&, const float*,
                                              float*, cudaStream_t);

}  // namespace strata::cuda
