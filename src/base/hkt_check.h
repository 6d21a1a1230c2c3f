// Argument checks shared by every HKT backend.
#pragma once

#include "base/on.h"
#include "strata/hkt.h"

namespace strata {

Status hkt_check(const HktProblem& problem, const HktOutputs& outputs, On on = On::kHost);
Status hkt_check(const HktGradients& gradients, const HktProblem& problem);
Status hkt_check(const HktDecode& decode);

}  // namespace strata
