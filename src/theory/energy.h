// HSA's energy |root| f(root) as a function of free scores S_ij, one per pair of tokens (docs/theory/hsa.md).
//
//   d(|root| f(root)) / dS_ij = w_i theta_ij                 theta: HSA's attention
//   |root| f(root) = max over block-tied theta of sum_i w_i (sum_j theta_ij S_ij - sum_j theta_ij log(theta_ij / w_j))
#pragma once

#include "strata/tree.h"
#include "theory/matrix.h"

namespace strata {

// |root| f(root) by the recursion of docs/MATH.md, section 2.2, where the score of two siblings is the weighted mean of
// S over their tokens. S: (tokens, tokens), position terms included; weights: (tokens), >= 0. 0 if all weights are 0.
double energy_of(const Tree& tree, const Matrix& S, const Vector& weights);

// The sum over i that the maximum is taken of; 0 log 0 = 0. theta: (tokens, tokens).
double entropy_form(const Matrix& theta, const Matrix& S, const Vector& weights);

// Adds E(c, b) to the score of every pair of tokens that siblings c and b separate. table: (kinds, places, places).
void add_position_terms(const Tree& tree, const double* table, int64_t places, Matrix& S);

}  // namespace strata
