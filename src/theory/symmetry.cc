#include "theory/symmetry.h"

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

}  // namespace strata
