#include "theory/gaussianity.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/chi_squared.hpp>
#include <boost/math/distributions/normal.hpp>
#include <cmath>

namespace strata {
namespace {

// The principal components of the rows, whitened: mean 0, covariance (1/n) the identity. Fewer columns when the rows
// span less.
Matrix whitened(const Matrix& X, Eigen::Index components) {
  const auto n = static_cast<double>(X.rows());
  const Matrix centered = X.rowwise() - X.colwise().mean();
  const Eigen::SelfAdjointEigenSolver<Matrix> solver((centered.transpose() * centered) / n);
  const Vector& values = solver.eigenvalues();  // ascending
  constexpr double kRankTolerance = 1e-10;
  Eigen::Index rank = 0;
  for (const double value : values) rank += value > kRankTolerance * values(values.size() - 1);
  const Eigen::Index p = std::min(components, values(values.size() - 1) > 0 ? rank : 0);
  Matrix Y = centered * solver.eigenvectors().rightCols(p);
  for (Eigen::Index c = 0; c < p; ++c) Y.col(c) /= std::sqrt(values(values.size() - p + c));
  return Y;
}

}  // namespace

Matrix score_coordinates(const Matrix& q, const Matrix& k) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(k.transpose() * k);
  const Vector roots = solver.eigenvalues().cwiseMax(0).cwiseSqrt();
  return q * solver.eigenvectors() * roots.asDiagonal();
}

GaussianityResult gaussianity_of(const Matrix& X, int64_t components, int64_t quantiles) {
  GaussianityResult result;
  result.rows = X.rows();
  if (!X.allFinite()) {
    result.problem = "the rows are not finite";
    return result;
  }
  if (X.rows() < 2 || X.cols() < 1) {
    result.problem = fmt::format("too few rows: {}", X.rows());
    return result;
  }
  const Matrix Y = whitened(X, components);
  const auto n = static_cast<double>(Y.rows()), p = static_cast<double>(Y.cols());
  result.components = Y.cols();
  if (Y.cols() == 0) {
    result.problem = "all rows are equal: their covariance is zero";
    return result;
  }
  if (n <= p + 1) {
    result.problem = fmt::format("too few rows for {1} components: {0}, more than {2} are needed", n, p, p + 1);
    return result;
  }
  const Matrix products = Y * Y.transpose();
  result.skewness = products.array().cube().sum() / (n * n);
  result.kurtosis = products.diagonal().array().square().sum() / n;
  result.ceiling = p * (n - 1);
  const double factor = (p + 1) * (n + 1) * (n + 3) / (n * ((n + 1) * (p + 1) - 6));
  result.skewness_statistic = n * result.skewness / 6 * factor;
  result.skewness_p = boost::math::cdf(boost::math::complement(boost::math::chi_squared(p * (p + 1) * (p + 2) / 6),
                                                               std::max(0.0, result.skewness_statistic)));
  result.expected_kurtosis = p * (p + 2) * (n - 1) / (n + 1);
  result.kurtosis_ratio = result.kurtosis / result.expected_kurtosis;
  const double variance =
      8 * p * (p + 2) * (n - 3) * (n - p - 1) * (n - p + 1) / ((n + 1) * (n + 1) * (n + 3) * (n + 5));
  result.kurtosis_z = (result.kurtosis - result.expected_kurtosis) / std::sqrt(variance);
  result.kurtosis_p = 2 * boost::math::cdf(boost::math::complement(boost::math::normal(), std::abs(result.kurtosis_z)));

  const auto first_column = Y.col(Y.cols() - 1);  // the largest eigenvalue is last
  std::vector<double> first(first_column.begin(), first_column.end());
  std::sort(first.begin(), first.end());
  for (int64_t k = 0; k < quantiles; ++k) {  // at the probabilities (k + 1/2) / quantiles
    const double probability = (static_cast<double>(k) + 0.5) / static_cast<double>(quantiles);
    const double place = probability * n - 0.5;
    const auto below = static_cast<size_t>(std::clamp(std::floor(place), 0.0, n - 1));
    const size_t above = std::min(below + 1, first.size() - 1);
    const double share = std::clamp(place - static_cast<double>(below), 0.0, 1.0);
    result.quantiles.push_back(first[below] * (1 - share) + first[above] * share);
    result.normal_quantiles.push_back(boost::math::quantile(boost::math::normal(), probability));
  }
  return result;
}

}  // namespace strata
