#include "cuda/device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <string>

#include "cuda/cuda_status.h"

namespace strata::cuda {
namespace {

Kernels from_environment() {
  const char* name = std::getenv("STRATA_CUDA_KERNELS");
  for (const Kernels kernels : {Kernels::kMma, Kernels::kSimt}) {
    if (name != nullptr && std::string(name) == kernels_name(kernels)) return kernels;
  }
  return Kernels::kSm90;
}

std::atomic<Kernels>& fastest_allowed() {
  static std::atomic<Kernels> kernels = from_environment();
  return kernels;
}

std::atomic<int>& shared_memory_limit() {
  static std::atomic<int> limit = std::numeric_limits<int>::max();
  return limit;
}

std::atomic<int64_t>& once_limit() {
  static std::atomic<int64_t> limit = -1;
  return limit;
}

DeviceProperties ask(int device) {
  DeviceProperties properties;
  auto attribute = [&](cudaDeviceAttr which, int* value) { cudaDeviceGetAttribute(value, which, device); };
  attribute(cudaDevAttrComputeCapabilityMajor, &properties.major);
  attribute(cudaDevAttrComputeCapabilityMinor, &properties.minor);
  attribute(cudaDevAttrMultiProcessorCount, &properties.multiprocessors);
  attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &properties.shared_memory);
  cudaDeviceProp all;
  if (cudaGetDeviceProperties(&all, device) == cudaSuccess) properties.name = all.name;
  return properties;
}

}  // namespace

const DeviceProperties& device_properties() {
  static std::mutex mutex;
  static std::map<int, DeviceProperties> known;  // its elements stay where they are
  static const DeviceProperties none;
  thread_local int last_device = -1;
  thread_local const DeviceProperties* last = &none;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return none;
  if (device != last_device) {
    const std::lock_guard lock(mutex);
    const auto found = known.find(device);
    last = found != known.end() ? &found->second : &(known[device] = ask(device));
    last_device = device;
  }
  return *last;
}

int shared_memory_per_block() { return std::min(device_properties().shared_memory, shared_memory_limit().load()); }

void score_once_from(int64_t tokens) { once_limit() = tokens; }
int64_t scored_once_from() { return once_limit(); }

void limit_shared_memory(int bytes) { shared_memory_limit() = bytes; }
std::string device_name() { return available().ok() ? device_properties().name : ""; }

void set_kernels(Kernels kernels) { fastest_allowed() = kernels; }
Kernels allowed_kernels() { return fastest_allowed(); }

const char* kernels_name(Kernels kernels) {
  return kernels == Kernels::kSm90 ? "sm90" : kernels == Kernels::kMma ? "mma" : "simt";
}

bool has_sm90_kernels() {
#ifdef STRATA_SM90
  constexpr int kSharedMemory = 227 * 1024;
  const DeviceProperties& device = device_properties();
  return allowed_kernels() == Kernels::kSm90 && device.major == 9 && device.minor == 0 &&
         shared_memory_per_block() >= kSharedMemory;
#else
  return false;
#endif
}

unsigned persistent_grid(int64_t work_tiles, bool long_and_uneven) {
  return static_cast<unsigned>(long_and_uneven ? work_tiles
                                               : std::min<int64_t>(work_tiles, device_properties().multiprocessors));
}

Status available() {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess || count == 0)
    return {StatusCode::kUnsupported,
            text("no CUDA device found", e == cudaSuccess ? "" : ": ", e == cudaSuccess ? "" : cudaGetErrorString(e))};
  const DeviceProperties& device = device_properties();
  if (device.major < 8)
    return {StatusCode::kUnsupported,
            text("expected a GPU of compute capability 8.0 or newer, got ", device.major, ".", device.minor)};
  return {};
}

}  // namespace strata::cuda
