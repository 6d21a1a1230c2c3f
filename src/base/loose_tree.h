// A tree under construction: families in any order, tokens numbered in the order in which they are added.
#pragma once

#include "strata/tree.h"

namespace strata {

struct LooseTree {
  struct Family {
    Domain domain = Domain::kSequence;
    int32_t width = 0;
    std::vector<int32_t> children;  // token t, or ~family
  };
  std::vector<Family> families;  // 0 is the root
  int32_t tokens = 0;

  int32_t add_family(Domain domain, int32_t parent = -1) {
    const auto index = static_cast<int32_t>(families.size());
    if (parent >= 0) families[parent].children.push_back(~index);
    families.push_back({domain, 0, {}});
    return index;
  }
  void add_token(int32_t family) { families[family].children.push_back(tokens++); }

  Status finish(Tree* tree) const;
};

}  // namespace strata
