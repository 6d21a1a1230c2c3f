// How far apart scores are that a hierarchy ties together (docs/MATH.md, section 3).
#pragma once

#include <vector>

#include "theory/matrix.h"

namespace strata {

// For every row i of the scores, the largest range of S_ij over the tokens j of one node that the row sees in streaming
// attention: delta_i, and KL_i <= delta_i^2 / 8. scores: (tokens, tokens).
std::vector<double> node_ranges(const Matrix& scores, int64_t branching, int64_t near, bool both_sides);

}  // namespace strata
