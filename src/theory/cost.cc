#include "theory/cost.h"

namespace strata {

CostBounds balanced_cost_bounds(int64_t tokens, int64_t branching) {
  double heights = 1;
  for (int64_t covered = branching; covered < tokens; covered *= branching) ++heights;
  const auto T = static_cast<double>(tokens), b = static_cast<double>(branching);
  return {(T - 1) / (b - 1) + heights, b * (b * T / (b - 1) + heights), b * b * T * heights};
}

}  // namespace strata
