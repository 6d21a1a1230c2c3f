// The instruction sets that the kernel tests run on: those of this host, and AMX with its tiles in software.
#pragma once

#include "strata/cpu.h"

namespace strata::test {

inline std::vector<Isa> tested_isas() {
  std::vector<Isa> isas = supported_isas();
  const Isa before = current_isa();
  if (set_isa(Isa::kAmxEmulated).ok()) isas.push_back(Isa::kAmxEmulated);
  if (!set_isa(before).ok()) isas.clear();
  return isas;
}

// Goes back to the instruction set of its construction.
class IsaScope {
 public:
  IsaScope() = default;
  ~IsaScope() { (void)set_isa(before_).ok(); }
  IsaScope(const IsaScope&) = delete;
  IsaScope& operator=(const IsaScope&) = delete;

 private:
  const Isa before_ = current_isa();
};

// Whether an instruction set has kernels of its own for bfloat16 only.
inline bool is_for_bfloat16(Isa isa) { return isa >= Isa::kAvx512Bf16; }

}  // namespace strata::test
