// What launchers share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device.h"

namespace strata::cuda {

inline unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// More shared memory than the 48 KB that every kernel may have.
template <class Kernel>
cudaError_t allow_shared_memory(Kernel kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

// Launches a kernel that begins with follow_kernel(): on Hopper its blocks may be placed while the kernel ahead of it
// in the stream still runs, which hides most of a launch.
template <class... Parameters, class... Arguments>
cudaError_t launch_following(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, size_t memory,
                             cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute follows{};
  follows.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  follows.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = memory;
  config.stream = stream;
  config.attrs = &follows;
  config.numAttrs = has_sm90_kernels() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

#ifdef __CUDACC__
// Waits until the kernel ahead has ended and all that it wrote can be seen; then the next one may be placed.
__device__ inline void follow_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

}  // namespace strata::cuda
