// The product instructions of bfloat16 alone, as many as a core can do: what a kernel's rate is compared with.
#pragma once

#include <cstdint>

namespace strata::bench {

// Each thread does `repeats` rounds of independent products on registers. Returns the FLOPs of all threads together.
double run_vdpbf16ps(int threads, int64_t repeats);  // needs Isa::kAvx512Bf16
double run_tdpbf16ps(int threads, int64_t repeats);  // needs Isa::kAmx

}  // namespace strata::bench
