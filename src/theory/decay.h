// The loss when a pyramid is cut to its first levels (docs/theory/decay.md). With w the weight of the levels kept and c
// half the range of the scores of a row, over levels and allowed keys: KL(full || cut) <= 2 (1 - w)^2 c^2, and the same
// bound holds for KL(cut || full).
#pragma once

#include "theory/error.h"

namespace strata {

struct DecayStep {
  int levels = 0;         // kept
  double weight = 0;      // w
  double kl = 0;          // mean over the rows of KL(full || cut)
  double reverse_kl = 0;  // of KL(cut || full)
  double bound = 0;       // mean over the rows
  double worst = 0;       // largest ratio of either divergence of a row to its bound: never above 1
};
std::vector<DecayStep> decay_of(const LevelScores& scores);

}  // namespace strata
