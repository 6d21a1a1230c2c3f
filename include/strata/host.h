// Workarounds for two faults of the libraries below torch, by environment variables.
//
// 1. Some hypervisors announce AMX but hide CPUID leaf 0x1D, which has the tile sizes; some operating systems do not
//    enable AMX. oneDNN then crashes with an illegal instruction at its first bfloat16 product. ONEDNN_MAX_CPU_ISA
//    keeps it below AMX.
// 2. An OpenBLAS that is older than the CPU falls back to kernels of 2004. OPENBLAS_CORETYPE selects better ones.
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

// CPUID of this CPU; zeros on other architectures. STRATA_CPUID replaces some leaves, for tests: a comma-separated list
// of LEAF.SUBLEAF=EAX:EBX:ECX:EDX in hexadecimal.
STRATA_API Cpuid host_cpuid();

struct HostCpu {
  std::string name;
  // The CPU has it and the operating system saves its registers.
  bool avx = false, avx2 = false, avx512 = false, avx512_bf16 = false, amx = false;
  bool amx_usable = false;  // by our own kernels, which need no tile sizes from CPUID
  std::string amx_problem;  // why AMX cannot be used although the CPU announces it
  bool intel = false;
};
// kernel_allows_amx asks the operating system; it is called only if the CPU has AMX.
STRATA_API HostCpu host_cpu(const Cpuid& cpuid, const std::function<bool()>& kernel_allows_amx);
STRATA_API const HostCpu& host_cpu();  // of this machine, read once

// The kernels that the loaded OpenBLAS uses, for example "Haswell"; empty if OpenBLAS is not loaded.
STRATA_API std::string openblas_core();

struct HostSetting {
  std::string name, value;  // of an environment variable
  std::string reason;       // one sentence
};
// The settings that this CPU and this choice of OpenBLAS need.
STRATA_API std::vector<HostSetting> host_settings(const HostCpu& cpu, const std::string& openblas_core);
// The settings that this machine needs and the environment does not have. A variable that is set is never changed.
STRATA_API std::vector<HostSetting> missing_host_settings();

// For main(): sets the missing variables, says so on standard error, and starts the program again, because libraries
// that are already loaded have read their variables. Returns if nothing was missing.
STRATA_API void settle_host(char** argv, const std::vector<HostSetting>& more = {});

}  // namespace strata

// missing_host_settings() for Python, before torch is loaded: lines of NAME, VALUE and reason, separated by tabs.
extern "C" STRATA_API const char* strata_missing_host_settings();
