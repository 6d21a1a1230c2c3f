// Are the rows of a score matrix Gaussian? Mardia's multivariate skewness and kurtosis (docs/theory/gaussianity.md).
//
//   b1 = 1/n^2 sum_ij (y_i . y_j)^3,  b2 = 1/n sum_i (y_i . y_i)^2      of whitened rows y, covariance with 1/n
#pragma once

#include <string>

#include "theory/matrix.h"

namespace strata {

struct GaussianityResult {
  int64_t rows = 0, components = 0;
  double skewness = 0, kurtosis = 0;  // b1, b2
  double skewness_statistic = 0,
         skewness_p = 0;  // chi-squared with p (p + 1) (p + 2) / 6 degrees of freedom, small-sample form
  double kurtosis_z = 0, kurtosis_p = 0;  // small-sample form, two-sided; z grows with sqrt(n) at equal tails
  double expected_kurtosis = 0;           // E b2 of Gaussian rows: p (p + 2) (n - 1) / (n + 1)
  double kurtosis_ratio = 0;              // b2 / E b2, comparable between different n
  double ceiling = 0;                     // the upper limit of b2 of any rows: p (n - 1)
  std::vector<double> quantiles;          // of the first component, standardised
  std::vector<double> normal_quantiles;   // of the normal distribution, at the same probabilities: a QQ plot
  std::string problem;                    // why the fields above are empty; empty if they are valid
};
// The rows of X, (n, m), on their first p principal components: p = min(components, rank of the centred rows).
GaussianityResult gaussianity_of(const Matrix& X, int64_t components, int64_t quantiles = 33);

// Rows of S = q k^T in an orthonormal basis of the keys: the same geometry with d columns instead of T.
Matrix score_coordinates(const Matrix& q, const Matrix& k);

}  // namespace strata
