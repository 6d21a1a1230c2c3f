// A table of position gradients is added to by many families. Sums of integers do not depend on their order, so they
// are kept as multiples of 2^-36.
#pragma once

#include "cuda/launch.cuh"

namespace strata::cuda {

constexpr double kFixedPoint = 68719476736.0;

__device__ inline void add_fixed_point(long long* to, double x) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(llrint(x * kFixedPoint)));
}

template <class C>
__global__ void from_fixed_point(const long long* from, C* to, int64_t count) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) to[at] = static_cast<C>(static_cast<double>(from[at]) / kFixedPoint);
}

// A table in fixed point: cleared before the kernels that add to it, converted after them. Null: not wanted.
struct FixedPointTable {
  long long* data;
  int64_t entries;

  cudaError_t clear(cudaStream_t stream) const {
    return data == nullptr ? cudaSuccess : cudaMemsetAsync(data, 0, entries * sizeof(long long), stream);
  }
  template <class C>
  cudaError_t convert(C* to, cudaStream_t stream) const {
    if (data != nullptr) from_fixed_point<C><<<blocks_for(entries, 128), 128, 0, stream>>>(data, to, entries);
    return cudaGetLastError();
  }
};

}  // namespace strata::cuda
