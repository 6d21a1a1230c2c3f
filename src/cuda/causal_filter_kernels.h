// The CUDA kernels of the causal filter; causal_filter_cuda.cc has checked the arguments.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/pyramid.h"

namespace strata::cuda {

cudaError_t causal_filter_forward_simt(const CausalFilter& f, void* y, cudaStream_t stream);
size_t causal_filter_backward_workspace_simt(const CausalFilter& f);
cudaError_t causal_filter_backward_simt(const CausalFilter& f, const CausalFilterGradients& g, void* workspace,
                                        cudaStream_t stream);
// decode_rows.cu
cudaError_t pyramid_step_simt(const PyramidStep& p, cudaStream_t stream);
cudaError_t nothing_simt(cudaStream_t stream);

}  // namespace strata::cuda
