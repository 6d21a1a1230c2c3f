#pragma once

#include "core/on.h"
#include "strata/hsa.h"

namespace strata {

Status hsa_check(const HsaProblem& problem, On on = On::kHost);
Status hsa_check(const HsaGradients& gradients, const HsaProblem& problem);

}  // namespace strata
