#include "strata/cpu.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "cpu/kernels.h"
#include "strata/host.h"

namespace strata {
namespace {

// Whether this host and build have an instruction set. AMX: the tile sizes are fixed, so it is used even where CPUID
// hides them; the operating system is asked once, in host_cpu().
bool host_has(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
#ifdef STRATA_X86
    case Isa::kAvx2:  // x86-64-v3
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    case Isa::kAvx512:  // x86-64-v4
      return host_has(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
#endif
#ifdef STRATA_HAS_AVX512_BF16
    case Isa::kAvx512Bf16:
      return host_has(Isa::kAvx512) && host_cpu().avx512_bf16;
#endif
#ifdef STRATA_HAS_AMX
    case Isa::kAmx:
      return host_has(Isa::kAvx512Bf16) && host_cpu().amx_usable;
#endif
#ifdef STRATA_HAS_AMX_EMULATED
    case Isa::kAmxEmulated:
      return true;
#endif
    default:
      return false;
  }
}

// The fastest. On Intel's CPUs the vector product of bfloat16 pairs is slower than float32 arithmetic (measured on a
// Xeon: 71 ms for flat attention of 2,048 tokens, against 40), so that without AMX it is not chosen there.
Isa fastest(const std::vector<Isa>& supported) {
  return supported.back() == Isa::kAvx512Bf16 && host_cpu().intel ? Isa::kAvx512 : supported.back();
}

Isa initial_isa() {
  const std::vector<Isa> supported = supported_isas();
  const char* wanted = std::getenv("STRATA_ISA");
  if (wanted == nullptr || *wanted == '\0') return fastest(supported);
  for (Isa isa : supported) {
    if (std::strcmp(wanted, isa_name(isa)) == 0) return isa;
  }
  std::fprintf(stderr, "strata: STRATA_ISA=%s is not supported by this host and build (supported: portable", wanted);
  for (size_t at = 1; at < supported.size(); ++at) std::fprintf(stderr, ", %s", isa_name(supported[at]));
  std::fprintf(stderr, "); using %s\n", isa_name(fastest(supported)));
  return fastest(supported);
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
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
    case Isa::kAmxEmulated:
      return "amx_emulated";
  }
  return "unknown";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
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
  switch (current_isa()) {
#ifdef STRATA_HAS_AMX
    case Isa::kAmx:
      return isa_amx::kKernels;
#endif
#ifdef STRATA_HAS_AVX512_BF16
    case Isa::kAvx512Bf16:
      return isa_avx512_bf16::kKernels;
#endif
#ifdef STRATA_X86
    case Isa::kAvx512:
      return isa_avx512::kKernels;
    case Isa::kAvx2:
      return isa_avx2::kKernels;
#endif
#ifdef STRATA_HAS_AMX_EMULATED
    case Isa::kAmxEmulated:
      return isa_amx_emulated::kKernels;
#endif
    default:
      return isa_portable::kKernels;
  }
}

int threads_or_default(int threads) { return threads > 0 ? threads : std::max(1, omp_get_max_threads()); }

Status kernel_status(bool had_memory, const char* mechanism) {
  if (had_memory) return {};
  return {StatusCode::kOutOfMemory,
          text("out of memory: the ", mechanism,
               " kernel could not allocate its work space; use fewer threads or shorter sequences")};
}

}  // namespace strata
