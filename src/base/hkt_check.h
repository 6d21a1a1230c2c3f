// Argument checks shared by every HKT backend.
#pragma once

#include "base/on.h"
#include "strata/hkt.h"

namespace strata {

Status hkt_check(const HktProblem& problem, const HktOutputs& outputs, On on = On::kHost);

// The problem with everything that stands for something else written out: the keys' tokens, lengths and rows of
// self-attention, and the causal mask and a window without end as numbers of tokens. All kernels take it in this form.
HktProblem hkt_complete(HktProblem problem);
// Neither queries nor keys: nothing to compute, or to write but dweights.
inline bool hkt_is_empty(const HktProblem& p) { return p.batch == 0 || (p.tokens == 0 && p.key_tokens <= 0); }
Status hkt_check(const HktGradients& gradients, const HktProblem& problem);
Status hkt_check(const HktDecode& decode, On on = On::kHost);
Status hkt_check(const HktAppend& append, On on = On::kHost);

}  // namespace strata
