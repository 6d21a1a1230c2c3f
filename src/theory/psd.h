// The PSD condition (docs/theory/psd.md): a kernel x M y^T is positive semi-definite when sym(M) = (M + M^T) / 2 is.
#pragma once

#include "theory/matrix.h"

namespace strata {

struct PsdResult {
  Vector eigenvalues;         // of sym(M), ascending, without those that are zero up to rounding
  double smallest = 0;        // of all eigenvalues
  double negative_count = 0;  // share of the non-zero eigenvalues that are negative
  double negative_mass = 0;   // sum |lambda_-| / sum |lambda|
  bool holds = true;          // none is negative
};
PsdResult psd_of(const Matrix& M);

// q_i = W_q x_i, k_j = W_k x_j (weights stored as in torch's Linear, (d, model)): M = W_q^T W_k. Only a 2d x 2d matrix
// with the same non-zero eigenvalues is decomposed.
PsdResult psd_of_projections(const Matrix& query, const Matrix& key);

// |W_q on the kernel of W_k| / |W_q|, 0 to 1: the share of the queries that no linear map makes from the keys. If W_k
// has full rank and sym(M) >= 0, it is 0.
double queries_beyond_keys(const Matrix& query, const Matrix& key);

}  // namespace strata
