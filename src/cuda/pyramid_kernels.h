// The CUDA kernels of whole pyramids; pyramid_cuda.cc has checked the arguments.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/pyramid.h"

namespace strata::cuda {

cudaError_t pyramid_forward_simt(const Pyramid& p, const PyramidStates& states, cudaStream_t stream);
size_t pyramid_backward_workspace_simt(const Pyramid& p);
cudaError_t pyramid_backward_simt(const Pyramid& p, const PyramidStates& states, const PyramidGradients& g,
                                  void* workspace, cudaStream_t stream);

}  // namespace strata::cuda
