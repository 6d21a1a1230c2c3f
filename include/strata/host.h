// What this machine's CPU and the libraries under torch get wrong together, and the environment variables that repair
// it.
//
// 1. Some hypervisors announce AMX but hide CPUID leaf 0x1D, which has the tile sizes, and some kernels refuse AMX.
//    oneDNN then computes every bfloat16 product with an illegal instruction. ONEDNN_MAX_CPU_ISA keeps it below AMX.
// 2. An OpenBLAS that is older than the CPU falls back to kernels of 2004. OPENBLAS_CORETYPE names better ones.
//
// oneDNN reads its variable at its first product, OpenBLAS when it is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strata/export.h"

namespace strata {

struct CpuidLeaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};
using Cpuid = std::function<CpuidLeaf(uint32_t leaf, uint32_t subleaf)>;

// The CPU's own answers; zeros on other architectures. STRATA_CPUID replaces some, for tests: a comma-separated list of
// LEAF.SUBLEAF=EAX:EBX:ECX:EDX in hexadecimal.
STRATA_API Cpuid host_cpuid();

struct HostCpu {
  std::string name;
  bool avx = false, avx2 = false, avx512 = false, amx = false;  // announced, and kept by the operating system
  std::string amx_problem;                                      // why AMX cannot be used although it is announced
};
// kernel_allows_amx asks the operating system; it is called only where the CPU has AMX.
STRATA_API HostCpu host_cpu(const Cpuid& cpuid, const std::function<bool()>& kernel_allows_amx);
STRATA_API const HostCpu& host_cpu();  // of this machine, asked once

// The kernels that the loaded OpenBLAS has chosen, for example "Haswell"; empty when none is loaded.
STRATA_API std::string openblas_core();

struct HostSetting {
  std::string name, value;  // of an environment variable
  std::string reason;       // one sentence
};
// What should be set for this CPU and this choice of OpenBLAS.
STRATA_API std::vector<HostSetting> host_settings(const HostCpu& cpu, const std::string& openblas_core);
// Of those, for this machine, what the environment leaves open. A variable that is set is the user's decision.
STRATA_API std::vector<HostSetting> missing_host_settings();

// For main(): sets what is missing, says so on standard error, and starts the program again, since libraries that are
// loaded have read their variables. Returns where nothing was missing.
STRATA_API void settle_host(char** argv, const std::vector<HostSetting>& more = {});

}  // namespace strata

// missing_host_settings() for Python, before torch is loaded: lines of NAME, VALUE and reason, with tabs between them.
extern "C" STRATA_API const char* strata_missing_host_settings();
