// The launchers of this instruction set.
#pragma once

#include "cpu/simd.h"
#include "strata/hsa.h"

namespace strata::STRATA_ISA {

bool hsa_forward_cpu(const HsaProblem& problem, const HsaOutputs& outputs, int threads);
bool hsa_backward_cpu(const HsaProblem& problem, const HsaGradients& gradients, int threads);

}  // namespace strata::STRATA_ISA
