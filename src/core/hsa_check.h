#pragma once

#include "strata/hsa.h"

namespace strata {

Status hsa_check(const HsaProblem& problem);
Status hsa_check(const HsaGradients& gradients, const HsaProblem& problem);

}  // namespace strata
