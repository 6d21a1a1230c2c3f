// One storage type a file: these kernels take long to compile.
#include "cuda/hkt_forward_mma.cuh"

namespace strata::cuda {

template cudaError_t hkt_forward_mma<__half>(const HktProblem&, const HktOutputs&, cudaStream_t);

}  // namespace strata::cuda
