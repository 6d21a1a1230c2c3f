// Dropout on attention weights: each is set to zero with probability p, and the others are divided by 1 - p.
//
// Which weights are dropped is a function of the seed, the offset, the sequence, the query head, the row and the key
// alone, so CPU and GPU drop the same ones whatever their tiles are, and the backward finds them again without any
// stored mask (docs/NUMERICS.md).
#pragma once

#include <cstdint>

namespace strata {

struct Dropout {
  double probability = 0;          // rounded to a multiple of 2^-16, less than 1; 0: no dropout
  const int64_t* state = nullptr;  // two numbers, seed and offset, read where the kernels run; required with dropout
};

}  // namespace strata
