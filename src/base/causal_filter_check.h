// Argument checks of the causal filter.
#pragma once

#include "base/on.h"
#include "strata/pyramid.h"

namespace strata {

Status causal_filter_check(const CausalFilter& filter, const void* y, On on = On::kHost);
Status causal_filter_check(const CausalFilter& filter, const CausalFilterGradients& gradients, On on = On::kHost);
Status pyramid_step_check(const PyramidStep& step, On on = On::kHost);

}  // namespace strata
