// The HKT kernels with products of bfloat16. They take bfloat16 problems that pairs_take (hkt_pair_tile.h).
#pragma once

#include "cpu/simd.h"
#include "strata/hkt.h"

namespace strata::STRATA_ISA {

bool hkt_forward_pairs(const HktProblem& problem, const HktOutputs& outputs, int threads);
// Where pairs are masked and an operand is infinite or NaN, products would let 0 * NaN reach what it must not: false.
bool hkt_backward_pairs_take(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& gradients,
                             int threads);
bool hkt_backward_pairs(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& gradients,
                        int threads);

}  // namespace strata::STRATA_ISA
