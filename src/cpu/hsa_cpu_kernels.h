// The HSA kernels of this instruction set.
#pragma once

#include "cpu/simd.h"
#include "strata/hsa.h"
#include "strata/hsa_stream.h"

namespace strata::STRATA_ISA {

bool hsa_forward_cpu(const HsaProblem& problem, const HsaOutputs& outputs, int threads);
bool hsa_backward_cpu(const HsaProblem& problem, const HsaGradients& gradients, int threads);
bool hsa_stream_forward_cpu(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs, int threads);
bool hsa_stream_backward_cpu(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs,
                             const HsaStreamGradients& gradients, int threads);

}  // namespace strata::STRATA_ISA
