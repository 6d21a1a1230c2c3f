// What attention on a balanced tree costs, counted in two ways (docs/theory/hsa.md).
#pragma once

#include <cstdint>

namespace strata {

// Of the balanced tree of b children over T tokens, whose H = ceil(log_b T) heights have ceil(T / b^h) families each.
struct CostBounds {
  double families = 0;        // at most (T - 1) / (b - 1) + H, and no fewer than (T - 1) / (b - 1)
  double linear = 0;          // score products by families: at most b (b T / (b - 1) + H), O(T b)
  double with_logarithm = 0;  // by heights, as the paper does: at most b^2 T H
};
CostBounds balanced_cost_bounds(int64_t tokens, int64_t branching);

}  // namespace strata
