// The causal filter's kernels of one instruction set.
#pragma once

#include "cpu/simd.h"
#include "strata/pyramid.h"

namespace strata::STRATA_ISA {

bool causal_filter_forward_cpu(const CausalFilter& filter, void* y, int threads);
bool causal_filter_backward_cpu(const CausalFilter& filter, const CausalFilterGradients& gradients, int threads);
bool pyramid_step_cpu(const PyramidStep& step);

}  // namespace strata::STRATA_ISA
