// Reductions within a warp, and within the quads (four neighbouring lanes) that share the rows of an mma accumulator.
#pragma once

namespace strata::cuda {

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp_of_thread() { return static_cast<int>(threadIdx.x) / 32; }

template <class C>
__device__ inline C warp_sum(C x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
template <class C>
__device__ inline C warp_max(C x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace strata::cuda
