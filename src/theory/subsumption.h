// HKT contains standard attention and causal convolution, and neither of them contains HKT
// (docs/theory/subsumption.md). The special cases and the counterexamples are built and run.
#pragma once

#include <cstdint>

namespace strata {

// Largest changes of the output at the last token, in float64.
struct StrictResult {
  // when the tokens before it are permuted, without positions
  double flat_permuted = 0;  // rounding, for all weights
  double hkt_permuted = 0;   // two levels
  // when the token that a convolution no longer sees is changed: the one `taps` tokens back
  double convolution_beyond = 0;  // exactly 0
  double hkt_beyond = 0;
};
// With one or two tokens nothing can be permuted, with at most `taps` tokens the convolution sees all: 0 for both
// sides.
StrictResult strict_subsumption(int64_t tokens, int64_t taps, uint64_t seed);

struct SubsumptionResult {
  int64_t tokens = 0, taps = 0, head_size = 0;
  double one_level = 0;      // |HKT with L = 1 - softmax attention|, largest entry
  double one_hot = 0;        // |HKT with L = 3 and weights (1, 0, 0) - softmax attention|
  double sharpness = 0;      // 2 s beta: the gap between a token's own score and any other
  double convolution = 0;    // |attention with position bits - the causal filter|
  double largest_stray = 0;  // largest weight off the diagonal, in float32
  StrictResult strict;
};
SubsumptionResult subsumption(int64_t tokens, int64_t taps, uint64_t seed);

}  // namespace strata
