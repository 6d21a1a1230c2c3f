#include "cuda/cuda_status.h"
#include "strata/cuda.h"

namespace strata::cuda {

Status available() {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess || count == 0)
    return {StatusCode::kUnsupported,
            text("no GPU: ", e == cudaSuccess ? "none is visible" : cudaGetErrorString(e))};
  int device = 0, major = 0;
  if (Status s = cuda_status(cudaGetDevice(&device), "GPU"); !s.ok()) return s;
  if (Status s = cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "GPU"); !s.ok())
    return s;
  if (major < 8) return {StatusCode::kUnsupported, text("expected a GPU of compute capability 8.0 or newer, got ", major, ".x")};
  return {};
}

}  // namespace strata::cuda
