// The current device, and which kernels may be used on it.
#pragma once

#include <cstdint>
#include <string>

#include "strata/cuda.h"

namespace strata::cuda {

struct DeviceProperties {
  std::string name = {};
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 1;
  int shared_memory = 48 * 1024;  // bytes a block may have
};
const DeviceProperties& device_properties();  // queried once per device

// Bytes of shared memory a block may have; fewer where limit_shared_memory() says so.
int shared_memory_per_block();

int64_t scored_once_from();  // what score_once_from() says

Kernels allowed_kernels();
// The build has kernels for sm_90a, the device has compute capability 9.0 and their shared memory, and they are
// allowed.
bool has_sm90_kernels();

// Blocks of a persistent kernel: one per multiprocessor, or fewer where there is less work. Where work tiles are long
// and uneven, every tile has a block of its own, which the hardware schedules as others end.
unsigned persistent_grid(int64_t work_tiles, bool long_and_uneven);
constexpr int64_t kLongSequence = 8192;  // tokens

}  // namespace strata::cuda
