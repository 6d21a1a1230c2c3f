// What launchers share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace strata::cuda {

inline unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// More shared memory than the 48 KB that every kernel may have.
template <class Kernel>
cudaError_t allow_shared_memory(Kernel kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace strata::cuda
