// Symmetric and antisymmetric parts of a score matrix (docs/theory/symmetry.md): S = sym(S) + anti(S), orthogonal.
#pragma once

#include "theory/matrix.h"

namespace strata {

inline Matrix symmetric_part(const Matrix& S) { return 0.5 * (S + S.transpose()); }
inline Matrix antisymmetric_part(const Matrix& S) { return 0.5 * (S - S.transpose()); }

struct SymmetryResult {
  double directional_share = 0;  // |anti(S)|^2 / |S|^2; 0 for a zero matrix
  double orthogonality = 0;      // residual of |S|^2 = |sym|^2 + |anti|^2, relative
};
SymmetryResult symmetry_of(const Matrix& S);

// Residual of anti(U S U^T) = U anti(S) U^T for the up-sampling of a level, relative to |S|.
double upsampling_commutes(const Matrix& S, int level, Eigen::Index tokens);
// Residual of anti(X M X^T) = X anti(M) X^T, relative to |X M X^T|: the split commutes with projections.
double projection_commutes(const Matrix& X, const Matrix& M);

// A causal filter as one product, x^(l) = X D (docs/MATH.md, section 1.1).
struct StackedFilter {
  int stride = 2;  // 1 in front of the pyramid
  Matrix D;        // (taps * channels, channels): W_0^T, W_1^T, .. below each other
};
// weight: as the filter's parameter, (taps, channels) if depthwise, (taps * channels, channels), output channel first,
// if dense.
StackedFilter stacked_filter(const Matrix& weight, bool dense, int stride);
// X: (ceil(T / stride), taps * channels). Row m holds the inputs of the taps, x_{stride m}, x_{stride m - 1}, .., with
// zeros before the first token. below: (T, channels).
Matrix stacked_taps(const Matrix& below, Eigen::Index taps, int stride);
// The largest of the residuals of
//   x^(l) = X D,   S^(l) = X D M D^T X^T   and   anti(S^(l)) = X D anti(M) D^T X^T,   with S^(l) = x^(l) M x^(l)^T,
// relative to x^(l) and S^(l). below and states: the rows of level l - 1 and l.
double filters_commute(const Matrix& below, const Matrix& states, const StackedFilter& filter, const Matrix& M);

}  // namespace strata
