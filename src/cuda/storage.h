// Storage types, the types that sums are taken in, and the way from a DType to them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "strata/tensor.h"

namespace strata::cuda {

template <class S>
struct ComputeOf {
  using Type = float;
};
template <>
struct ComputeOf<double> {
  using Type = double;
};

inline bool is_16_bit(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }
inline size_t compute_size(DType dtype) { return dtype == DType::kFloat64 ? sizeof(double) : sizeof(float); }

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
// The same for the two types that tensor cores multiply.
template <class Run>
cudaError_t with_16_bit_storage(DType dtype, const Run& run) {
  return dtype == DType::kBFloat16 ? run(__nv_bfloat16{}) : run(__half{});
}

}  // namespace strata::cuda
