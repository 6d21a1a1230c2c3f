// The matrices of the theory: float64, row-major like tensors.
#pragma once

#include <Eigen/Dense>
#include <vector>

namespace strata {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;

// U_l S U_l^T: each entry of level l repeated over its 2^l x 2^l block, cut to tokens x tokens.
inline Matrix upsample(const Matrix& coarse, int level, Eigen::Index tokens) {
  Matrix fine(tokens, tokens);
  for (Eigen::Index i = 0; i < tokens; ++i) {
    for (Eigen::Index j = 0; j < tokens; ++j) fine(i, j) = coarse(i >> level, j >> level);
  }
  return fine;
}

}  // namespace strata
