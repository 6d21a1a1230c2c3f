// The CUDA kernels of layer norm; layer_norm_cuda.cc has checked the arguments.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/cuda.h"

namespace strata::cuda {

cudaError_t layer_norm_forward_simt(const LayerNorm& n, float* y, cudaStream_t stream);
size_t layer_norm_backward_workspace_simt(const LayerNorm& n);
cudaError_t layer_norm_backward_simt(const LayerNorm& n, const LayerNormGradients& g, void* workspace,
                                     cudaStream_t stream);

}  // namespace strata::cuda
