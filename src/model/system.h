// The machine and the libraries a process runs on.
#pragma once

#include "util/options.h"

namespace strata {

void set_threads(int64_t threads);  // of torch and of our kernels; 0: all cores
Json versions();                    // of strata and torch, and the instruction set in use
Json system_info();                 // versions, instruction sets, cores, memory, devices, cache

}  // namespace strata
