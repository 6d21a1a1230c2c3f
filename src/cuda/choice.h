// Which kernels may be used, and on which chip we are.
#pragma once

#include "strata/cuda.h"

namespace strata::cuda {

Kernels allowed_kernels();
bool on_hopper();  // the current device has compute capability 9.0

}  // namespace strata::cuda
