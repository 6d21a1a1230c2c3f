// How the tree of a text is made.
#pragma once

#include <string>
#include <vector>

#include "inject/host.h"
#include "strata/tree.h"

namespace strata {

// "sentences": the structure of the text; "balanced": left-packed, all families of `branching`; "windows": two heights,
// families of `branching` tokens under one. Special tokens at the ends are children of the root.
struct TreeRecipe {
  std::string kind = "sentences";
  int64_t branching = 16;

  std::string name() const;  // "sentences 16"
  Tree make(const Host& host, const HostText& text) const;
};

// Every recipe that "best" and "auto" choose from.
std::vector<TreeRecipe> all_recipes(bool causal);

}  // namespace strata
