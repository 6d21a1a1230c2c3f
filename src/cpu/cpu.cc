#include "strata/cpu.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "cpu/kernels.h"

namespace strata {
namespace {

bool host_has(Isa isa) {
#ifdef STRATA_X86
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:  // x86-64-v3
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    case Isa::kAvx512:  // x86-64-v4
      return host_has(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
  }
  return false;
#else
  return isa == Isa::kPortable;
#endif
}

Isa initial_isa() {
  const std::vector<Isa> supported = supported_isas();
  const char* wanted = std::getenv("STRATA_ISA");
  if (wanted == nullptr || *wanted == '\0') return supported.back();
  for (Isa isa : supported) {
    if (std::strcmp(wanted, isa_name(isa)) == 0) return isa;
  }
  std::fprintf(stderr, "strata: STRATA_ISA=%s is not supported by this host and build (supported: portable", wanted);
  for (size_t at = 1; at < supported.size(); ++at) std::fprintf(stderr, ", %s", isa_name(supported[at]));
  std::fprintf(stderr, "); using %s\n", isa_name(supported.back()));
  return supported.back();
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> isa{initial_isa()};
  return isa;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (host_has(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa current_isa() { return chosen_isa(); }

Status set_isa(Isa isa) {
  if (!host_has(isa))
    return invalid("isa: this host or build does not support ", isa_name(isa), "; see supported_isas()");
  chosen_isa() = isa;
  return {};
}

const CpuKernels& cpu_kernels() {
#ifdef STRATA_X86
  switch (current_isa()) {
    case Isa::kAvx512:
      return isa_avx512::kKernels;
    case Isa::kAvx2:
      return isa_avx2::kKernels;
    case Isa::kPortable:
      break;
  }
#endif
  return isa_portable::kKernels;
}

int threads_or_default(int threads) { return threads > 0 ? threads : std::max(1, omp_get_max_threads()); }

Status kernel_status(bool had_memory, const char* mechanism) {
  if (had_memory) return {};
  return {StatusCode::kOutOfMemory,
          text("out of memory: the ", mechanism,
               " kernel could not allocate its work space; use fewer threads or shorter sequences")};
}

}  // namespace strata
