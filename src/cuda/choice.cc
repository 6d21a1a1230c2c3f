#include "cuda/choice.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "cuda/cuda_status.h"

namespace strata::cuda {
namespace {

Kernels from_environment() {
  const char* name = std::getenv("STRATA_CUDA_KERNELS");
  const std::string word = name == nullptr ? "best" : name;
  return word == "plain" ? Kernels::kPlain : word == "common" ? Kernels::kCommon : Kernels::kBest;
}

std::atomic<Kernels>& choice() {
  static std::atomic<Kernels> kernels = from_environment();
  return kernels;
}

}  // namespace

void set_kernels(Kernels kernels) { choice() = kernels; }
Kernels allowed_kernels() { return choice(); }

bool use_hopper() {
  if (allowed_kernels() != Kernels::kBest) return false;
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0;
}

unsigned grid_for(int64_t pieces, bool long_and_uneven) {
  int device = 0, multiprocessors = 1;
  if (cudaGetDevice(&device) == cudaSuccess)
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return static_cast<unsigned>(long_and_uneven ? pieces : std::min<int64_t>(pieces, multiprocessors));
}

Status available() {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess || count == 0)
    return {StatusCode::kUnsupported, text("no GPU: ", e == cudaSuccess ? "none is visible" : cudaGetErrorString(e))};
  int device = 0, major = 0;
  if (Status s = cuda_status(cudaGetDevice(&device), "GPU"); !s.ok()) return s;
  if (Status s = cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "GPU"); !s.ok())
    return s;
  if (major < 8)
    return {StatusCode::kUnsupported, text("expected a GPU of compute capability 8.0 or newer, got ", major, ".x")};
  return {};
}

}  // namespace strata::cuda
