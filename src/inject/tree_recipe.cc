#include "inject/tree_recipe.h"

#include <algorithm>
#include <set>

#include "util/error.h"

namespace strata {

std::string TreeRecipe::name() const { return fmt::format("{} {}", kind, branching); }

namespace {

void check(const Status& status) {
  if (!status.ok()) throw data_error("tree: {}", status.message());
}

}  // namespace

Tree TreeRecipe::make(const Host& host, const HostText& text) const {
  if (kind == "sentences") return host.natural_tree(text, branching);
  const std::set<int64_t> special(text.special.begin(), text.special.end());
  int64_t before = 0, behind = 0;
  while (special.count(before) > 0) ++before;
  while (behind < text.tokens() - before && special.count(text.tokens() - 1 - behind) > 0) ++behind;
  const int64_t tokens = text.tokens() - before - behind;
  Tree tree;
  if (tokens == 0) {
    check(star_tree(text.tokens(), Domain::kSequence, &tree));
    return tree;
  }
  check(kind == "balanced"
            ? balanced_tree(tokens, branching, Domain::kSequence, &tree)
            : window_tree(tokens, {branching, std::max<int64_t>(tokens, 2)}, 0, Domain::kSequence, &tree));
  if (before + behind > 0) check(tree_with_ends(Tree(tree), before, behind, &tree));
  return tree;
}

std::vector<TreeRecipe> all_recipes(bool causal) {
  std::vector<TreeRecipe> recipes;
  if (causal) return {{"balanced", 4}, {"balanced", 8}, {"balanced", 16}, {"balanced", 32}};
  for (const char* kind : {"sentences", "balanced", "windows"}) {
    for (const int64_t branching : {2, 4, 8, 16, 32}) recipes.push_back({kind, branching});
  }
  return recipes;
}

}  // namespace strata
