#pragma once

#include "base/on.h"
#include "strata/hsa.h"

namespace strata {

// The structure of the trees alone.
Status hsa_check_trees(const HsaProblem& problem);
Status hsa_check(const HsaProblem& problem, On on = On::kHost);
Status hsa_check(const HsaGradients& gradients, const HsaProblem& problem);

}  // namespace strata
