// Which vector instructions the CPU kernels use. Chosen once, at the first call: the best the host has, or what the
// environment variable STRATA_ISA names ("portable", "avx2", "avx512").
#pragma once

#include <vector>

#include "strata/status.h"

namespace strata {

enum class Isa { kPortable, kAvx2, kAvx512 };

const char* isa_name(Isa isa);
std::vector<Isa> supported_isas();  // of this host and build, slowest first
Isa current_isa();
Status set_isa(Isa isa);  // for tests and benchmarks

}  // namespace strata
