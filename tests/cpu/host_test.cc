// Simulated machines: CPUs that announce AMX but hide its tile sizes, operating systems that do not allow AMX, an
// OpenBLAS that is older than the CPU.
#include "strata/host.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace strata {
namespace {

constexpr uint32_t kAvx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31 | 1u << 5;
constexpr uint32_t kAmx = 1u << 22 | 1u << 24 | 1u << 25;

// A CPU described by its CPUID leaves. Leaf 1 is that of the real CPU, so that it agrees with the real XCR0.
Cpuid fake(uint32_t last_leaf, uint32_t extended_edx, bool with_tiles) {
  return [=](uint32_t leaf, uint32_t subleaf) -> CpuidLeaf {
    if (leaf == 0) return {last_leaf, 0, 0, 0};
    if (leaf == 1) return host_cpuid()(1, 0);
    if (leaf == 7) return subleaf == 0 ? CpuidLeaf{1, kAvx512, 0, extended_edx} : CpuidLeaf{1u << 5, 0, 0, 0};
    if (leaf == 0x1d && with_tiles) return subleaf == 0 ? CpuidLeaf{1, 0, 0, 0} : CpuidLeaf{8192, 1 << 16 | 64, 16, 0};
    if (leaf == 0x80000000) return {0x80000004, 0, 0, 0};
    if (leaf >= 0x80000002 && leaf <= 0x80000004) return {leaf == 0x80000002 ? 0x555043u : 0u, 0, 0, 0};  // "CPU"
    return {};
  };
}

const auto kAllowed = [] { return true; };
const auto kRefused = [] { return false; };

TEST(Host, AmxWithItsTileSizesIsLeftAlone) {
  const HostCpu cpu = host_cpu(fake(0x20, kAmx, true), kAllowed);
  EXPECT_EQ(cpu.name, "CPU");
  EXPECT_TRUE(cpu.amx);
  EXPECT_EQ(cpu.amx_problem, "");
  EXPECT_TRUE(host_settings(cpu, "").empty());
}

TEST(Host, HiddenTileSizesKeepOneDnnBelowAmx) {
  for (const auto& cpuid : {fake(0x1c, kAmx, true), fake(0x20, kAmx, false)}) {  // out of range; empty
    const HostCpu cpu = host_cpu(cpuid, kAllowed);
    EXPECT_NE(cpu.amx_problem.find("0x1D"), std::string::npos) << cpu.amx_problem;
    const std::vector<HostSetting> settings = host_settings(cpu, "");
    ASSERT_EQ(settings.size(), 1u);
    EXPECT_EQ(settings[0].name, "ONEDNN_MAX_CPU_ISA");
    EXPECT_EQ(settings[0].value, "AVX512_CORE_BF16");
  }
}

TEST(Host, RefusedAmxKeepsOneDnnBelowAmx) {
  const HostCpu cpu = host_cpu(fake(0x20, kAmx, true), kRefused);
  EXPECT_NE(cpu.amx_problem.find("operating system"), std::string::npos) << cpu.amx_problem;
  EXPECT_EQ(host_settings(cpu, "").size(), 1u);
}

TEST(Host, OurKernelsUseAmxWhereItIsAllowedWhateverIsHidden) {
  for (bool with_tiles : {true, false}) {
    const HostCpu cpu = host_cpu(fake(0x20, kAmx, with_tiles), kAllowed);
    EXPECT_EQ(cpu.avx512_bf16, cpu.avx512);  // which a machine without AVX-512 has not, whatever CPUID says
    EXPECT_EQ(cpu.amx_usable, cpu.avx512);
    EXPECT_FALSE(host_cpu(fake(0x20, kAmx, with_tiles), kRefused).amx_usable);
  }
  EXPECT_FALSE(host_cpu(fake(0x20, 0, true), kAllowed).amx_usable);
}

TEST(Host, WithoutAmxTheKernelIsNotAsked) {
  const HostCpu cpu = host_cpu(fake(0x1c, 0, false), []() -> bool { throw std::runtime_error("was asked"); });
  EXPECT_FALSE(cpu.amx);
  EXPECT_TRUE(host_settings(cpu, "").empty());
}

TEST(Host, AnOldCpuHasNothing) {
  const HostCpu cpu = host_cpu([](uint32_t, uint32_t) { return CpuidLeaf{}; }, kAllowed);
  EXPECT_EQ(cpu.name, "unknown");
  EXPECT_FALSE(cpu.avx || cpu.avx2 || cpu.avx512 || cpu.amx);
  EXPECT_TRUE(host_settings(cpu, "Prescott").empty());  // there is no better choice
}

TEST(Host, OpenBlasBelowTheCpuIsRaised) {
  HostCpu cpu;
  auto raised = [&](const std::string& core) {
    const std::vector<HostSetting> settings = host_settings(cpu, core);
    if (settings.empty()) return std::string();
    EXPECT_EQ(settings[0].name, "OPENBLAS_CORETYPE");
    EXPECT_NE(settings[0].reason.find(core), std::string::npos) << settings[0].reason;
    return settings[0].value;
  };
  cpu.avx = true;
  EXPECT_EQ(raised("Prescott"), "Sandybridge");
  cpu.avx2 = true;
  EXPECT_EQ(raised("Prescott"), "Haswell");
  EXPECT_EQ(raised("Sandybridge"), "Haswell");
  EXPECT_EQ(raised("Zen"), "");
  cpu.avx512 = true;
  EXPECT_EQ(raised("Prescott"), "SkylakeX");
  EXPECT_EQ(raised("Haswell"), "SkylakeX");
  for (const char* core : {"Zen", "SkylakeX", "Cooperlake", "SapphireRapids", ""}) EXPECT_EQ(raised(core), "") << core;
}

TEST(Host, LeavesAreReplacedByTheEnvironment) {
  setenv("STRATA_CPUID", "1d.1=2000:400040:10:0,7.0=1:2:3:4", 1);
  const CpuidLeaf tiles = host_cpuid()(0x1d, 1), features = host_cpuid()(7, 0);
  unsetenv("STRATA_CPUID");
  EXPECT_EQ(tiles.eax, 0x2000u);
  EXPECT_EQ(tiles.ecx, 0x10u);
  EXPECT_EQ(features.edx, 4u);
}

TEST(Host, ThisMachineIsNamed) { EXPECT_FALSE(host_cpu().name.empty()); }

}  // namespace
}  // namespace strata
