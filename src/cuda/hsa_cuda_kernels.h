// The CUDA kernels of HSA attention. Arguments were checked (src/cuda/hsa_cuda.cc); everything is queued on the stream.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/cuda.h"

namespace strata::cuda {

constexpr int kHsaThreads = 128;

// Any tree, any storage type. numbers: HsaPlan::numbers on the device.
cudaError_t hsa_forward_any_tree(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const HsaOutputs& o,
                                 void* workspace, cudaStream_t stream);
cudaError_t hsa_backward_any_tree(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers,
                                  const HsaGradients& g, void* workspace, cudaStream_t stream);

}  // namespace strata::cuda
