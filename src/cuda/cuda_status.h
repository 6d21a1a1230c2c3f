// CUDA's errors as a Status.
#pragma once

#include <cuda_runtime_api.h>

#include "base/text.h"

namespace strata::cuda {

inline Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  if (error == cudaErrorMemoryAllocation)
    return {StatusCode::kOutOfMemory,
            text(what, ": the GPU is out of memory; use a smaller batch or a shorter sequence")};
  if (error == cudaErrorNoKernelImageForDevice)
    return {StatusCode::kUnsupported,
            text(what, ": this GPU is too old or too new for this build; it has code for ", STRATA_CUDA_ARCHITECTURES,
                 " (compute capability 8.0 and newer is supported)")};
  return {StatusCode::kUnsupported, text(what, ": ", cudaGetErrorString(error))};
}

}  // namespace strata::cuda
