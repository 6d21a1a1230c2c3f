// HKT contains standard attention and causal convolution (docs/theory/subsumption.md); both special cases are built and
// run.
#pragma once

#include <cstdint>

namespace strata {

struct SubsumptionResult {
  int64_t tokens = 0, taps = 0, head_size = 0;
  double one_level = 0;      // |HKT with L = 1 - softmax attention|, largest entry
  double one_hot = 0;        // |HKT with L = 3 and weights (1, 0, 0) - softmax attention|
  double sharpness = 0;      // 2 s beta: the gap between a token's own score and any other
  double convolution = 0;    // |attention with position bits - the causal filter|
  double largest_stray = 0;  // largest weight off the diagonal, in float32
};
SubsumptionResult subsumption(int64_t tokens, int64_t taps, uint64_t seed);

}  // namespace strata
