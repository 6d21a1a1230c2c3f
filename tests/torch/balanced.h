#pragma once

#include <gtest/gtest.h>

#include "torch/hsa_op.h"

namespace strata {

// A balanced tree, as the operators take it.
inline torch::Tensor balanced(int64_t tokens, int64_t branching) {
  Tree tree;
  EXPECT_TRUE(balanced_tree(tokens, branching, Domain::kSequence, &tree).ok());
  return encode_tree(tree);
}

}  // namespace strata
