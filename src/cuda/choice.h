// Which kernels may be used, and on which chip we are.
#pragma once

#include <cstdint>

#include "strata/cuda.h"

namespace strata::cuda {

Kernels allowed_kernels();
bool use_hopper();  // the current device has compute capability 9.0, and its own kernels are allowed

// Blocks for kernels that go from piece to piece: one per multiprocessor, or fewer where there is less work. Pieces
// that are long and uneven get a block each, as they are then shared out while they run.
unsigned grid_for(int64_t pieces, bool long_and_uneven);
constexpr int64_t kLong = 8192;  // tokens

}  // namespace strata::cuda
