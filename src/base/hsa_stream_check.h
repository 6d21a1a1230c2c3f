#pragma once

#include "base/on.h"
#include "strata/hsa_stream.h"

namespace strata {

Status hsa_stream_check(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs, On on = On::kHost);
Status hsa_stream_check_scores(const HsaStreamProblem& problem, const void* bound, On on = On::kHost);  // v is not read
Status hsa_stream_check(const HsaStreamGradients& gradients, const HsaStreamProblem& problem);
Status hsa_stream_check(const HsaStreamStep& step);  // does not read `lengths`

}  // namespace strata
