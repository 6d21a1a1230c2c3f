// The HKT kernels of this instruction set.
#pragma once

#include "cpu/simd.h"
#include "strata/hkt.h"

namespace strata::STRATA_ISA {

bool hkt_forward_cpu(const HktProblem& problem, const HktOutputs& outputs, int threads);
bool hkt_backward_cpu(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& gradients, int threads);
bool hkt_decode_cpu(const HktDecode& decode, int threads);
bool hkt_append_cpu(const HktAppend& append);

}  // namespace strata::STRATA_ISA
