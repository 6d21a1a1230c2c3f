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

}  // namespace strata::test
