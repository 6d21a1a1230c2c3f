// Which kernels may be used, and on which chip we are.
#pragma once

#include <cstdint>

#include "strata/cuda.h"

namespace strata::cuda {

Kernels allowed_kernels();
bool use_hopper();                  // the current device has compute capability 9.0, and its own kernels are allowed
unsigned one_wave(int64_t pieces);  // blocks: one per multiprocessor, or fewer where there is less work

}  // namespace strata::cuda
