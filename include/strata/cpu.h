// Which vector instructions the CPU kernels use. Chosen once, at the first call: the best the host has, or what the
// environment variable STRATA_ISA names ("portable", "avx2", "avx512").
#pragma once

#include <vector>

#include "strata/export.h"
#include "strata/status.h"

namespace strata {

enum class Isa { kPortable, kAvx2, kAvx512 };

STRATA_API const char* isa_name(Isa isa);
STRATA_API std::vector<Isa> supported_isas();  // of this host and build, slowest first
STRATA_API Isa current_isa();
STRATA_API Status set_isa(Isa isa);  // for tests and benchmarks

}  // namespace strata
