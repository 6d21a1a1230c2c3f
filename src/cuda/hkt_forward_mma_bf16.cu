// One storage type a file: these kernels take long to compile.
#include "cuda/hkt_forward_mma.cuh"

namespace strata::cuda {

bool hkt_forward_fits_mma(const HktProblem& p) {
  return with_tile<__nv_bfloat16>(p, [](auto) {});
}

template cudaError_t hkt_forward_mma<__nv_bfloat16>(const HktProblem&, const HktOutputs&, cudaStream_t);

}  // namespace strata::cuda
