// The chip we are on, and which of its kernels may be used.
#pragma once

#include <cstdint>
#include <string>

#include "strata/cuda.h"

namespace strata::cuda {

struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 1;
  int shared_memory = 48 * 1024;  // bytes a block may have
};
// Of the current device, asked once per device; less shared memory where limit_shared_memory() says so.
DeviceProperties device_properties();

Kernels allowed_kernels();
bool use_hopper();  // the current device has compute capability 9.0, and its own kernels are allowed

// Blocks for kernels that go from piece to piece: one per multiprocessor, or fewer where there is less work. Pieces
// that are long and uneven get a block each, as they are then shared out while they run.
unsigned grid_for(int64_t pieces, bool long_and_uneven);
constexpr int64_t kLong = 8192;  // tokens

}  // namespace strata::cuda
