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

// The tree of the tokens between the special tokens, and the special tokens as its siblings under a new root. Trained
// transformers put much of their attention on special tokens; inside a family they would be averaged with words.
Tree beside_special(const Tree& inner, int64_t before, int64_t behind) {
  std::vector<int32_t> begin = {0}, children, widths = {0};
  std::vector<Domain> domains = {Domain::kSequence};
  for (int64_t t = 0; t < before; ++t) children.push_back(static_cast<int32_t>(t));
  children.push_back(~1);
  for (int64_t t = 0; t < behind; ++t) children.push_back(static_cast<int32_t>(before + inner.tokens() + t));
  begin.push_back(static_cast<int32_t>(children.size()));
  for (int64_t family = 0; family < inner.families(); ++family) {
    for (int32_t at = inner.child_begin()[family]; at < inner.child_begin()[family + 1]; ++at) {
      const int32_t child = inner.children()[at];
      children.push_back(child < 0 ? child - 1 : child + static_cast<int32_t>(before));
    }
    begin.push_back(static_cast<int32_t>(children.size()));
    domains.push_back(inner.domain(family));
    widths.push_back(inner.width(family));
  }
  Tree tree;
  check(Tree::make(before + inner.tokens() + behind, std::move(begin), std::move(children), std::move(domains),
                   std::move(widths), &tree));
  return tree;
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
  return before + behind == 0 ? tree : beside_special(tree, before, behind);
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
