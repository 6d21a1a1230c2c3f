#pragma once

#include "strata/hsa_stream.h"

namespace strata {

Status hsa_stream_check(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs);
Status hsa_stream_check(const HsaStreamGradients& gradients, const HsaStreamProblem& problem);

}  // namespace strata
