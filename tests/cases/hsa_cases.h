// The table of HSA problems that the kernels of every device are tested on.
#pragma once

#include "cases/hsa_case.h"

namespace strata::test {

inline std::vector<HsaCase> hsa_cases() {
  return {
      {"one_token", {1}, Shape::kStar, 1, 1, 4, 4},
      {"balanced", {64, 33, 1}, Shape::kBalanced, 4, 2, 16, 16},
      {"balanced_16", {256, 100}, Shape::kBalanced, 16, 2, 64, 64},
      {"random", {50, 7, 81}, Shape::kRandom, 9, 2, 12, 20},
      {"random_wide", {300}, Shape::kRandom, 130, 1, 8, 8},
      {"chain", {40, 3}, Shape::kChain, 2, 2, 5, 3},
      {"left_deep", {31}, Shape::kLeftDeep, 2, 1, 8, 8},
      {"star", {200, 64, 65}, Shape::kStar, 1, 2, 16, 8},
      {"star_causal", {150}, Shape::kStar, 1, 1, 8, 8, Domain::kSequence, true, true, true},
      {"padded", {20, 0, 13}, Shape::kRandom, 5, 2, 8, 8, Domain::kSet, false, false, false, false},
      {"weights", {45, 30}, Shape::kRandom, 6, 2, 7, 9, Domain::kSet, true, true},
      {"positions", {60, 60}, Shape::kRandom, 8, 2, 16, 16, Domain::kSequence, true, false, false, false},
      {"positions_odd", {70, 12}, Shape::kBalanced, 5, 1, 8, 8, Domain::kSequence, true, false, false, false},
      {"causal", {70, 12}, Shape::kBalanced, 5, 2, 8, 8, Domain::kSequence, true, true, true},
      {"token_major",
       {40, 25},
       Shape::kRandom,
       6,
       3,
       16,
       16,
       Domain::kSet,
       false,
       false,
       false,
       true,
       Memory::kTokenMajor},
      {"spread", {40, 25}, Shape::kRandom, 6, 2, 10, 6, Domain::kSequence, true, true, false, true, Memory::kSpread},
  };
}

// Of the tree form of Strata attention: levels and grouped heads.
inline std::vector<HsaCase> strata_tree_cases() {
  const Domain set = Domain::kSet, sequence = Domain::kSequence;
  const Memory dense = Memory::kDense;
  return {
      {"levels_balanced", {64, 33, 1}, Shape::kBalanced, 4, 2, 16, 16, set, false, false, false, true, dense, 3},
      {"levels_balanced_16", {256, 100}, Shape::kBalanced, 16, 2, 64, 64, set, false, false, false, true, dense, 3},
      {"levels_ragged", {50, 7, 81}, Shape::kRandom, 9, 2, 12, 20, set, false, false, false, true, dense, 4},
      {"levels_wide", {300}, Shape::kRandom, 130, 1, 8, 8, set, false, false, false, true, dense, 3},
      {"levels_chain", {40, 3}, Shape::kChain, 2, 2, 5, 3, set, false, false, false, true, dense, 3},
      {"levels_left_deep", {31}, Shape::kLeftDeep, 2, 1, 8, 8, set, false, false, false, true, dense, 2},
      {"levels_star", {200, 64, 65}, Shape::kStar, 1, 2, 16, 8, set, false, false, false, true, dense, 8},
      {"levels_causal", {70, 12}, Shape::kBalanced, 5, 2, 8, 8, sequence, true, true, true, true, dense, 3},
      {"levels_padded", {20, 0, 13}, Shape::kRandom, 5, 2, 8, 8, set, false, false, false, false, dense, 3},
      {"levels_all_terms", {45, 30}, Shape::kRandom, 6, 2, 7, 9, sequence, true, true, false, true, dense, 3},
      {"levels_grouped", {45, 30}, Shape::kRandom, 6, 4, 8, 8, sequence, true, true, false, true, dense, 2, 2},
      {"grouped_one_level", {60, 5}, Shape::kBalanced, 8, 6, 8, 8, set, true, false, false, true, dense, 1, 2},
      {"one_key_head", {60, 31}, Shape::kBalanced, 16, 4, 16, 16, set, false, false, false, false, dense, 3, 1},
      {"levels_spread", {40, 25}, Shape::kRandom, 6, 2, 10, 6, sequence, true, true, false, true, Memory::kSpread, 3},
  };
}

}  // namespace strata::test
