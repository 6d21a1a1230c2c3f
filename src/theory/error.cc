#include "theory/error.h"

#include <cmath>

namespace strata {

Matrix LevelScores::mixed() const {
  Matrix S = weights(0) * levels[0];
  for (size_t l = 1; l < levels.size(); ++l) {
    S += weights(static_cast<Eigen::Index>(l)) * upsample(levels[l], static_cast<int>(l), tokens());
  }
  return S;
}

Matrix block_means(const Matrix& S, int level, bool causal) {
  if (level == 0) return S;
  const Eigen::Index T = S.rows(), block = Eigen::Index{1} << level, blocks = (T + block - 1) / block;
  Matrix coarse = Matrix::Zero(blocks, blocks);
  for (Eigen::Index m = 0; m < blocks; ++m) {
    for (Eigen::Index n = 0; n < blocks; ++n) {
      Eigen::Index rows = 0;
      for (Eigen::Index i = m * block; i < std::min(T, (m + 1) * block); ++i) {
        const Eigen::Index first = n * block, last = std::min({T, (n + 1) * block, causal ? i + 1 : T});
        if (last <= first) continue;
        coarse(m, n) += S.row(i).segment(first, last - first).mean();
        ++rows;
      }
      if (rows > 0) coarse(m, n) /= static_cast<double>(rows);
    }
  }
  return upsample(coarse, level, T);
}

ErrorResult error_of(const LevelScores& scores) {
  const Eigen::Index T = scores.tokens();
  const Matrix& flat = scores.levels[0];
  const Matrix delta = scores.mixed() - flat;
  Matrix R = Matrix::Zero(T, T);
  for (size_t l = 1; l < scores.levels.size(); ++l) {
    R -= scores.weights(static_cast<Eigen::Index>(l)) * (flat - block_means(flat, static_cast<int>(l), scores.causal));
  }
  ErrorResult sum;
  for (Eigen::Index i = 0; i < T; ++i) {
    const Eigen::Index keys = scores.keys(i);
    const auto s = flat.row(i).head(keys).array();
    const Eigen::ArrayXd p = (s - s.maxCoeff()).exp();
    const Eigen::ArrayXd attention = p / p.sum();
    const Eigen::ArrayXd d = delta.row(i).head(keys).array(), r = R.row(i).head(keys).array();
    const double mean = (attention * d).sum(), r_mean = (attention * r).sum(), top = d.maxCoeff();
    const Eigen::ArrayXd centered = d - mean;
    const double variance = (attention * centered.square()).sum(), third = (attention * centered.cube()).sum();
    const double fourth = (attention * centered.square().square()).sum() - 3 * variance * variance;
    const double r_variance = (attention * (r - r_mean).square()).sum();
    const double kl = std::log((attention * (d - top).exp()).sum()) + top - mean;
    const double resolution = r_variance / 2, filter = (variance - r_variance) / 2, correction = kl - variance / 2;
    sum.kl += kl;
    sum.resolution += resolution;
    sum.filter += filter;
    sum.correction += correction;
    sum.third += third / 6;
    sum.fourth += fourth / 24;
    sum.residual = std::max(sum.residual, std::abs(resolution + filter + correction - kl));
    sum.range = std::max(sum.range, top - d.minCoeff());
  }
  for (double* term : {&sum.kl, &sum.resolution, &sum.filter, &sum.correction, &sum.third, &sum.fourth})
    *term /= static_cast<double>(T);
  return sum;
}

}  // namespace strata
