#pragma once

#include "base/on.h"
#include "strata/hsa.h"

namespace strata {

// Checks only the structure of the trees.
Status hsa_check_trees(const HsaProblem& problem);
Status hsa_check(const HsaProblem& problem, On on = On::kHost);
Status hsa_check(const HsaGradients& gradients, const HsaProblem& problem);

}  // namespace strata
