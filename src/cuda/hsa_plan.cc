#include <algorithm>
#include <utility>

#include "base/hsa_check.h"
#include "base/text.h"
#include "cuda/hsa_kernels.h"
#include "strata/cuda.h"

namespace strata::cuda {
namespace {

std::vector<int32_t> depths_of(const TreeView& tree) {
  std::vector<int32_t> depth(tree.families, 0);
  for (int64_t f = 0; f < tree.families; ++f) {
    for (int32_t at = tree.child_begin[f]; at < tree.child_begin[f + 1]; ++at) {
      if (tree.children[at] < 0) depth[~tree.children[at]] = depth[f] + 1;
    }
  }
  return depth;
}

int64_t family_size(const TreeView& tree, int64_t f) { return tree.child_begin[f + 1] - tree.child_begin[f]; }
bool is_wide(const TreeView& tree, int64_t f) { return family_size(tree, f) > kNarrowFamily; }

// Levels whose rows each stand for tokens of one family.
int owned_levels(const TreeView& tree) {
  int levels = kMaxLevels;
  for (int64_t f = 0; f < tree.families; ++f) {
    int64_t leaves = 0, first = 0, end = 0;
    for (int32_t at = tree.child_begin[f]; at < tree.child_begin[f + 1]; ++at) {
      if (tree.children[at] < 0) continue;
      if (leaves++ == 0) first = tree.children[at];
      end = tree.children[at] + 1;
    }
    if (leaves == 0) continue;
    if (leaves < tree.child_begin[f + 1] - tree.child_begin[f] || end - first != leaves) return 1;
    while (levels > 1 && ((first >> (levels - 1) << (levels - 1)) != first ||
                          ((end >> (levels - 1) << (levels - 1)) != end && end != tree.tokens)))
      --levels;
  }
  return levels;
}

// Tokens of every tree, where each is one family of its tokens and all have as many; 0: other trees.
int64_t star_tokens(const HsaProblem& p) {
  for (int64_t n = 0; n < p.sequences; ++n) {
    const TreeView& tree = p.trees[n];
    if (tree.families != 1 || tree.tokens != p.trees[0].tokens || family_size(tree, 0) != tree.tokens) return 0;
    for (int64_t t = 0; t < tree.tokens; ++t) {
      if (tree.children[tree.child_begin[0] + t] != t) return 0;
    }
  }
  return p.sequences > 0 ? p.trees[0].tokens : 0;
}

// How many families, tokens and tiles there are, by depth; returns the number of children.
int64_t count_families(const HsaProblem& p, HsaPlan* plan, std::vector<std::vector<int32_t>>& depths) {
  int64_t children = 0;
  for (int64_t n = 0; n < p.sequences; ++n) {
    for (int64_t f = 0; f < p.trees[n].families; ++f)
      plan->widest_family = std::max(plan->widest_family, family_size(p.trees[n], f));
  }
  plan->tile_size = plan->widest_family <= kSmallTile ? kSmallTile : kWideTile;
  for (int64_t n = 0; n < p.sequences; ++n) {
    const TreeView& tree = p.trees[n];
    depths[n] = depths_of(tree);
    plan->families += tree.families;
    plan->leaves += tree.tokens;
    if (tree.families > 0) children += tree.child_begin[tree.families];
    plan->owned_levels = std::min(plan->owned_levels, owned_levels(tree));
    for (int64_t f = 0; f < tree.families; ++f) {
      const size_t depth = depths[n][f];
      if (depth + 2 > plan->depth_begin.size()) {
        plan->depth_begin.resize(depth + 2, 0);
        plan->tile_begin.resize(depth + 2, 0);
        plan->wide_begin.resize(depth + 1, 0);
      }
      ++plan->depth_begin[depth + 1];
      if (is_wide(tree, f)) {
        plan->tile_begin[depth + 1] += (family_size(tree, f) + plan->tile_size - 1) / plan->tile_size;
      } else {
        ++plan->wide_begin[depth];
      }
    }
  }
  if (plan->depth_begin.empty()) plan->depth_begin = plan->tile_begin = {0};
  for (size_t d = 1; d < plan->depth_begin.size(); ++d) {
    plan->depth_begin[d] += plan->depth_begin[d - 1];
    plan->tile_begin[d] += plan->tile_begin[d - 1];
    plan->wide_begin[d - 1] += plan->depth_begin[d - 1];
  }
  return children;
}

}  // namespace

Status hsa_plan(const HsaProblem& p, HsaPlan* plan) {
  *plan = {};
  if (Status s = hsa_check_trees(p); !s.ok()) return s;
  plan->levels = p.levels;
  plan->owned_levels = kMaxLevels;
  plan->star_tokens = star_tokens(p);
  std::vector<std::vector<int32_t>> depths(p.sequences);
  const int64_t children = count_families(p, plan, depths);
  if (std::max(children, plan->leaves) > INT32_MAX)
    return invalid("trees: expected fewer than 2^31 tokens in all, got ", plan->leaves);

  int64_t used = 0;
  auto take = [&](int64_t count) { return std::exchange(used, used + count); };
  plan->child_begin = take(plan->families + 1);
  plan->children = take(children);
  plan->sequence = take(plan->families);
  plan->kind = take(plan->families);
  plan->batch_of = take(p.sequences);
  plan->first_row = take(p.sequences * p.levels);
  plan->leaf_begin = take(p.sequences);
  plan->roots = take(p.sequences);
  plan->first_tile = take(plan->families);
  plan->tile_family = take(plan->tile_begin.back());
  plan->tile_child = take(plan->tile_begin.back());
  plan->numbers.assign(used, 0);
  int32_t* numbers = plan->numbers.data();

  // New numbers of the families: by depth, narrow ones first, then by sequence.
  std::vector<int64_t> next = plan->depth_begin, next_wide = plan->wide_begin, next_tile = plan->tile_begin;
  std::vector<std::vector<int32_t>> renumbered(p.sequences);
  int64_t leaf = 0;
  for (int64_t n = 0; n < p.sequences; ++n) {
    for (int64_t f = 0; f < p.trees[n].families; ++f) {
      const int32_t depth = depths[n][f];
      const int32_t to = static_cast<int32_t>((is_wide(p.trees[n], f) ? next_wide : next)[depth]++);
      renumbered[n].push_back(to);
      numbers[plan->first_tile + to] = static_cast<int32_t>(next_tile[depth]);
      for (int64_t child = 0; is_wide(p.trees[n], f) && child < family_size(p.trees[n], f); child += plan->tile_size) {
        const int64_t tile = next_tile[depth]++;
        numbers[plan->tile_family + tile] = to;
        numbers[plan->tile_child + tile] = static_cast<int32_t>(child);
      }
    }
    numbers[plan->batch_of + n] = static_cast<int32_t>(p.batch_of[n]);
    for (int l = 0; l < p.levels; ++l)
      numbers[plan->first_row + l * p.sequences + n] =
          static_cast<int32_t>(l == 0 ? p.first_token[n] : p.first_row[l][n]);
    numbers[plan->leaf_begin + n] = static_cast<int32_t>(leaf);
    numbers[plan->roots + n] = p.trees[n].families > 0 ? renumbered[n][0] : -1;
    leaf += p.trees[n].tokens;
    for (int64_t f = 0; f < p.trees[n].families; ++f) {
      const int32_t to = renumbered[n][f];
      numbers[plan->sequence + to] = static_cast<int32_t>(n);
      numbers[plan->kind + to] = p.trees[n].kind[f];
      const int64_t size = family_size(p.trees[n], f);
      if (p.trees[n].kind[f] >= 0) {
        plan->position_tables = std::max<int64_t>(plan->position_tables, p.trees[n].kind[f] + 1);
        plan->position_places = std::max(plan->position_places, size);
      }
      numbers[plan->child_begin + to + 1] = static_cast<int32_t>(size);  // sizes, first
    }
  }
  for (int64_t f = 0; f < plan->families; ++f) numbers[plan->child_begin + f + 1] += numbers[plan->child_begin + f];
  for (int64_t n = 0; n < p.sequences; ++n) {
    const TreeView& tree = p.trees[n];
    for (int64_t f = 0; f < tree.families; ++f) {
      int32_t* to = numbers + plan->children + numbers[plan->child_begin + renumbered[n][f]];
      for (int32_t at = tree.child_begin[f]; at < tree.child_begin[f + 1]; ++at)
        *to++ = tree.children[at] < 0 ? ~renumbered[n][~tree.children[at]] : tree.children[at];
    }
  }
  return {};
}

}  // namespace strata::cuda
