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
// Residual of anti(X M X^T) = X anti(M) X^T, relative to |X M X^T|: the split commutes with filters and projections.
double projection_commutes(const Matrix& X, const Matrix& M);

}  // namespace strata
