// How far HKT attention is from flat attention, and why (docs/theory/error.md).
//
// With att* = softmax(S^(0) + mask) and Delta = S - S^(0), for every row over its allowed keys, exactly
//   KL(att*_i || att_i) = log E_{att*_i}[exp Delta] - E_{att*_i}[Delta]
// and Delta = R + F, where R is what averaging over blocks removes from S^(0), and F is what the filters add.
#pragma once

#include "theory/matrix.h"

namespace strata {

// The scores of one head on one sequence: levels[l] is the scaled S^(l), T_l x T_l, weights are the convex weights.
struct LevelScores {
  std::vector<Matrix> levels;
  Vector weights;
  bool causal = false;

  Eigen::Index tokens() const { return levels.front().rows(); }
  Eigen::Index keys(Eigen::Index row) const { return causal ? row + 1 : tokens(); }  // keys 0 .. keys - 1 are allowed
  Matrix mixed() const;                                                              // S = sum_l a_l U S^(l) U^T
};

// Means over the rows. resolution + filter + correction = kl.
struct ErrorResult {
  double kl = 0;
  double resolution = 0;         // Var(R) / 2
  double filter = 0;             // (Var(Delta) - Var(R)) / 2; may be negative
  double correction = 0;         // KL - Var(Delta) / 2: zero for a Gaussian Delta; may be negative
  double third = 0, fourth = 0;  // its leading terms, k3 / 6 and k4 / 24
  double residual = 0;           // largest |resolution + filter + correction - kl| of a row
  double range = 0;              // largest max Delta - min Delta; the cumulant series converges below pi
};
ErrorResult error_of(const LevelScores& scores);

// P_l S: each entry becomes the mean over its 2^l x 2^l block: over the allowed keys of a row first, then over the rows
// that have one.
Matrix block_means(const Matrix& S, int level, bool causal);

}  // namespace strata
