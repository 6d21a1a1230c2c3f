#include "theory/symmetry.h"

#include <algorithm>

namespace strata {
namespace {

double relative(double residual, double size) { return size > 0 ? residual / size : residual; }

}  // namespace

SymmetryResult symmetry_of(const Matrix& S) {
  const double all = S.squaredNorm(), anti = antisymmetric_part(S).squaredNorm(), sym = symmetric_part(S).squaredNorm();
  return {relative(anti, all), relative(std::abs(all - sym - anti), all)};
}

double upsampling_commutes(const Matrix& S, int level, Eigen::Index tokens) {
  const Matrix fine = upsample(S, level, tokens);
  return relative((antisymmetric_part(fine) - upsample(antisymmetric_part(S), level, tokens)).norm(), fine.norm());
}

double projection_commutes(const Matrix& X, const Matrix& M) {
  const Matrix S = X * M * X.transpose();
  return relative((antisymmetric_part(S) - X * antisymmetric_part(M) * X.transpose()).norm(), S.norm());
}

StackedFilter stacked_filter(const Matrix& weight, bool dense, int stride) {
  const Eigen::Index channels = weight.cols(), taps = dense ? weight.rows() / channels : weight.rows();
  StackedFilter filter{stride, Matrix::Zero(taps * channels, channels)};
  for (Eigen::Index r = 0; r < taps; ++r) {
    auto tap = filter.D.middleRows(r * channels, channels);
    if (dense) {
      tap = weight.middleRows(r * channels, channels).transpose();
    } else {
      tap.diagonal() = weight.row(r);
    }
  }
  return filter;
}

Matrix stacked_taps(const Matrix& below, Eigen::Index taps, int stride) {
  const Eigen::Index channels = below.cols(), rows = (below.rows() + stride - 1) / stride;
  Matrix X = Matrix::Zero(rows, taps * channels);
  for (Eigen::Index m = 0; m < rows; ++m) {
    for (Eigen::Index r = 0; r < std::min(taps, stride * m + 1); ++r) {
      X.row(m).segment(r * channels, channels) = below.row(stride * m - r);
    }
  }
  return X;
}

double filters_commute(const Matrix& below, const Matrix& states, const StackedFilter& filter, const Matrix& M) {
  const Matrix& D = filter.D;
  const Matrix X = stacked_taps(below, D.rows() / D.cols(), filter.stride);
  const Matrix S = states * M * states.transpose();
  const Matrix whole = D * M * D.transpose(), directed = D * antisymmetric_part(M) * D.transpose();
  return std::max({relative((states - X * D).norm(), states.norm()),
                   relative((S - X * whole * X.transpose()).norm(), S.norm()),
                   relative((antisymmetric_part(S) - X * directed * X.transpose()).norm(), S.norm())});
}

}  // namespace strata
