// Which vector instructions the CPU kernels use. Chosen once, at the first call: the best the host has, or what the
// environment variable STRATA_ISA names ("portable", "avx2", "avx512", "avx512_bf16", "amx"). The last two multiply
// bfloat16 numbers with float32 sums and are "avx512" for every other type.
#pragma once

#include <vector>

#include "strata/export.h"
#include "strata/status.h"

namespace strata {

// kAmxEmulated: the kernels for AMX with its tiles in software, for tests on any CPU. It is never chosen and never in
// supported_isas(); set_isa takes it where the library is built with its tests.
enum class Isa { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx, kAmxEmulated };

STRATA_API const char* isa_name(Isa isa);
STRATA_API std::vector<Isa> supported_isas();  // of this host and build, slowest first
STRATA_API Isa current_isa();
STRATA_API Status set_isa(Isa isa);  // for tests and benchmarks

}  // namespace strata
