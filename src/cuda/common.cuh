// What the kernels without tensor cores share.
#pragma once

#include "cuda/tile.cuh"

namespace strata::cuda {

template <class S>
struct ComputeOf {
  using Type = float;
};
template <>
struct ComputeOf<double> {
  using Type = double;
};

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

// Calls run(S{}) with the storage type that dtype names.
template <class Run>
cudaError_t with_storage(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kFloat32:
      return run(float{});
    case DType::kFloat64:
      return run(double{});
    case DType::kBFloat16:
      return run(__nv_bfloat16{});
    case DType::kFloat16:
      return run(__half{});
  }
  return cudaErrorInvalidValue;
}

inline unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace strata::cuda
