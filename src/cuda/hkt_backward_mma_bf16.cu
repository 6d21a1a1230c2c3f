// One storage type a file: these kernels take long to compile.
#include "cuda/hkt_backward_mma.cuh"

namespace strata::cuda {

bool hkt_backward_fits_mma(const HktProblem& p) {
  return with_tiles<__nv_bfloat16>(p, [](auto, auto) {});
}
int64_t hkt_backward_mma_parts(const HktProblem& p) { return tile_count(query_side(p), kSide); }

template cudaError_t hkt_backward_mma<__nv_bfloat16>(const HktProblem&, const HktOutputs&, const HktGradients&,
                                                     const float*, float*, cudaStream_t);

}  // namespace strata::cuda
