// Approximately normal numbers, the same on every machine: sums of uniform numbers.
#pragma once

#include "theory/matrix.h"
#include "util/random.h"

namespace strata::test {

inline Matrix random_matrix(Eigen::Index rows, Eigen::Index columns, uint64_t seed) {
  Random random(seed);
  Matrix made(rows, columns);
  for (Eigen::Index i = 0; i < made.size(); ++i) {
    double sum = -6;
    for (int k = 0; k < 12; ++k) sum += random.below(1U << 30) / static_cast<double>(1U << 30);
    made.data()[i] = sum;
  }
  return made;
}

}  // namespace strata::test
