#include "theory/decay.h"

#include <cmath>

namespace strata {
namespace {

// log softmax
Eigen::ArrayXd log_attention(const Eigen::ArrayXd& scores) {
  const double top = scores.maxCoeff();
  return scores - (top + std::log((scores - top).exp().sum()));
}

double divergence(const Eigen::ArrayXd& log_p, const Eigen::ArrayXd& log_q) {
  return (log_p.exp() * (log_p - log_q)).sum();
}

}  // namespace

std::vector<DecayStep> decay_of(const LevelScores& scores) {
  const Eigen::Index T = scores.tokens();
  const auto L = static_cast<int>(scores.levels.size());
  std::vector<Matrix> fine;
  fine.reserve(L);
  for (int l = 0; l < L; ++l) fine.push_back(upsample(scores.levels[l], l, T));
  const Matrix full = scores.mixed();
  std::vector<DecayStep> steps;
  Matrix kept = Matrix::Zero(T, T);
  double weight = 0;
  for (int levels = 1; levels <= L; ++levels) {
    kept += scores.weights(levels - 1) * fine[levels - 1];
    weight += scores.weights(levels - 1);
    DecayStep step;
    step.levels = levels;
    step.weight = weight;
    for (Eigen::Index i = 0; i < T && weight > 0; ++i) {
      const Eigen::Index keys = scores.keys(i);
      double half_range = 0;
      for (const Matrix& level : fine) {
        const auto row = level.row(i).head(keys);
        half_range = std::max(half_range, (row.maxCoeff() - row.minCoeff()) / 2);
      }
      const Eigen::ArrayXd p = log_attention(full.row(i).head(keys).array());
      const Eigen::ArrayXd q = log_attention(kept.row(i).head(keys).array() / weight);
      const double kl = divergence(p, q), reverse = divergence(q, p), lost = 1 - weight;
      const double bound = 2 * lost * lost * half_range * half_range;
      step.kl += kl / static_cast<double>(T);
      step.reverse_kl += reverse / static_cast<double>(T);
      step.bound += bound / static_cast<double>(T);
      constexpr double kRounding = 1e-12;  // below this, both are rounding errors only
      if (bound > kRounding) step.worst = std::max(step.worst, std::max(kl, reverse) / bound);
    }
    steps.push_back(step);
  }
  return steps;
}

}  // namespace strata
