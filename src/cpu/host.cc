#include "strata/host.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#ifdef STRATA_X86
#include <cpuid.h>
#include <sys/syscall.h>
#endif

namespace strata {
namespace {

uint64_t leaf_key(uint32_t leaf, uint32_t subleaf) { return uint64_t{leaf} << 32 | subleaf; }

std::map<uint64_t, CpuidLeaf> replaced_leaves() {
  std::map<uint64_t, CpuidLeaf> leaves;
  const char* at = std::getenv("STRATA_CPUID");
  while (at != nullptr && *at != '\0') {
    uint32_t leaf = 0, subleaf = 0;
    CpuidLeaf answer;
    if (std::sscanf(at, "%x.%x=%x:%x:%x:%x", &leaf, &subleaf, &answer.eax, &answer.ebx, &answer.ecx, &answer.edx) == 6)
      leaves[leaf_key(leaf, subleaf)] = answer;
    at = std::strchr(at, ',');
    if (at != nullptr) ++at;
  }
  return leaves;
}

bool has(uint32_t word, int bit) { return (word >> bit & 1) != 0; }

// Which register states the operating system saves, XCR0.
uint64_t saved_states() {
#ifdef STRATA_X86
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
#else
  return 0;
#endif
}

// Linux grants AMX's tile registers only to programs that request them. All threads of the program have them then.
bool kernel_allows_amx() {
#ifdef STRATA_X86
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  constexpr uint64_t kTileStates = 0x60000;
  return (saved_states() & kTileStates) == kTileStates && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::string brand(const Cpuid& cpuid) {
  constexpr uint32_t kBrand = 0x80000002, kParts = 3;
  if (cpuid(0x80000000, 0).eax < kBrand + kParts - 1) return "unknown";
  char name[16 * kParts + 1] = {};
  for (uint32_t part = 0; part < kParts; ++part) {
    const CpuidLeaf words = cpuid(kBrand + part, 0);
    std::memcpy(name + 16 * part, &words, sizeof words);
  }
  return std::strlen(name) > 0 ? name : "unknown";
}

// The vector width of an OpenBLAS core type: 0 for SSE, 1 for AVX, 2 for AVX2, 3 for AVX-512. Zen counts as 3: on a
// Zen 4 its kernels are as fast as those with AVX-512 (measured: sgemm within 2%).
int openblas_width(const std::string& core) {
  static const std::map<std::string, int> widths = {
      {"Sandybridge", 1}, {"Bulldozer", 1}, {"Piledriver", 1}, {"Steamroller", 1}, {"Excavator", 2},
      {"Haswell", 2},     {"Zen", 3},       {"SkylakeX", 3},   {"Cooperlake", 3},  {"SapphireRapids", 3}};
  const auto found = widths.find(core);
  return found == widths.end() ? 0 : found->second;
}

const char* (*find_openblas_corename())() {
  using Corename = const char* (*)();
  if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_get_corename")) return reinterpret_cast<Corename>(symbol);
  // Python loads libraries with local symbols, so the symbol must be looked up in the library itself.
  void* found = nullptr;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        if (std::strstr(info->dlpi_name, "blas") == nullptr) return 0;
        void* library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
        if (library == nullptr) return 0;
        void* symbol = dlsym(library, "openblas_get_corename");
        dlclose(library);  // it stays loaded, because others use it
        *static_cast<void**>(result) = symbol;
        return symbol == nullptr ? 0 : 1;
      },
      &found);
  return reinterpret_cast<Corename>(found);
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

Cpuid host_cpuid() {
  return [replaced = replaced_leaves()](uint32_t leaf, uint32_t subleaf) {
    CpuidLeaf answer;
    if (const auto found = replaced.find(leaf_key(leaf, subleaf)); found != replaced.end()) return found->second;
#ifdef STRATA_X86
    __cpuid_count(leaf, subleaf, answer.eax, answer.ebx, answer.ecx, answer.edx);
#endif
    return answer;
  };
}

HostCpu host_cpu(const Cpuid& cpuid, const std::function<bool()>& allows_amx) {
  HostCpu cpu;
  const uint32_t last_leaf = cpuid(0, 0).eax;
  cpu.name = brand(cpuid);
  constexpr uint32_t kGenu = 0x756e6547;  // the beginning of "GenuineIntel"
  cpu.intel = cpuid(0, 0).ebx == kGenu;
  if (last_leaf < 7) return cpu;
  const CpuidLeaf basic = cpuid(1, 0), extended = cpuid(7, 0);
  constexpr int kOsxsave = 27, kAvx = 28, kFma = 12, kAvx2 = 5, kAmxBf16 = 22, kAmxTile = 24;
  constexpr uint64_t kAvxStates = 0x6, kAvx512States = 0xe6;
  constexpr int kAvx512Bf16 = 5;  // of subleaf 1
  const uint64_t saved = has(basic.ecx, kOsxsave) ? saved_states() : 0;
  cpu.avx = has(basic.ecx, kAvx) && (saved & kAvxStates) == kAvxStates;
  cpu.avx2 = cpu.avx && has(extended.ebx, kAvx2) && has(basic.ecx, kFma);
  cpu.avx512 = cpu.avx2 && (saved & kAvx512States) == kAvx512States;
  for (const int part : {16, 17, 28, 30, 31}) cpu.avx512 = cpu.avx512 && has(extended.ebx, part);  // F, DQ, CD, BW, VL
  cpu.avx512_bf16 = cpu.avx512 && extended.eax >= 1 && has(cpuid(7, 1).eax, kAvx512Bf16);
  cpu.amx = has(extended.edx, kAmxTile) && has(extended.edx, kAmxBf16);
  if (!cpu.amx) return cpu;
  const bool allowed = allows_amx();
  cpu.amx_usable = cpu.avx512_bf16 && allowed;
  constexpr uint32_t kTileLeaf = 0x1d;
  if (last_leaf < kTileLeaf || cpuid(kTileLeaf, 0).eax == 0 || cpuid(kTileLeaf, 1).ebx == 0) {
    cpu.amx_problem = "the CPU announces AMX, but CPUID leaf 0x1D with its tile sizes is hidden";
  } else if (!allowed) {
    cpu.amx_problem = "the CPU announces AMX, but the operating system does not allow it";
  }
  return cpu;
}

const HostCpu& host_cpu() {
  static const HostCpu cpu = host_cpu(host_cpuid(), kernel_allows_amx);
  return cpu;
}

std::string openblas_core() {
  const auto corename = find_openblas_corename();
  return corename == nullptr ? "" : corename();
}

std::vector<HostSetting> host_settings(const HostCpu& cpu, const std::string& core) {
  std::vector<HostSetting> settings;
  if (!cpu.amx_problem.empty())
    settings.push_back({"ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", cpu.amx_problem + "; oneDNN would crash"});
  const int width = cpu.avx512 ? 3 : cpu.avx2 ? 2 : cpu.avx ? 1 : 0;
  static const char* const best[] = {"", "Sandybridge", "Haswell", "SkylakeX"};
  if (!core.empty() && openblas_width(core) < width)
    settings.push_back({"OPENBLAS_CORETYPE", best[width],
                        "OpenBLAS does not know this CPU and chose its slower " + core + " kernels"});
  return settings;
}

std::vector<HostSetting> missing_host_settings() {
  std::vector<HostSetting> missing;
  for (HostSetting& setting : host_settings(host_cpu(), openblas_core())) {
    if (!is_set(setting.name.c_str())) missing.push_back(std::move(setting));
  }
  return missing;
}

void settle_host(char** argv, const std::vector<HostSetting>& more) {
  std::vector<HostSetting> missing = missing_host_settings();
  for (const HostSetting& setting : missing)
    std::fprintf(stderr, "strata: %s; using %s=%s\n", setting.reason.c_str(), setting.name.c_str(),
                 setting.value.c_str());
  for (const HostSetting& setting : more) {
    if (!is_set(setting.name.c_str())) missing.push_back(setting);
  }
  if (missing.empty()) return;
  for (const HostSetting& setting : missing) setenv(setting.name.c_str(), setting.value.c_str(), 1);
  execv("/proc/self/exe", argv);  // if this fails, the program continues unchanged
}

}  // namespace strata

const char* strata_missing_host_settings() {
  static thread_local std::string lines;
  lines.clear();
  for (const strata::HostSetting& setting : strata::missing_host_settings())
    lines += setting.name + "\t" + setting.value + "\t" + setting.reason + "\n";
  return lines.c_str();
}
