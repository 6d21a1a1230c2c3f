// Families of a bounded size.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "data/listops.h"
#include "strata/tree.h"

namespace strata {
namespace {

std::vector<int32_t> sizes_of(const Tree& tree) {
  std::vector<int32_t> sizes;
  for (int64_t f = 0; f < tree.families(); ++f) sizes.push_back(tree.child_begin()[f + 1] - tree.child_begin()[f]);
  return sizes;
}

// First leaf and one past the last of every family, in the order of families; -1 where leaves are out of order.
std::vector<std::pair<int32_t, int32_t>> ranges_of(const Tree& tree) {
  std::vector<std::pair<int32_t, int32_t>> ranges(tree.families());
  for (int64_t f = tree.families() - 1; f >= 0; --f) {  // breadth first: children are behind
    int32_t next = -2;
    for (int32_t at = tree.child_begin()[f]; at < tree.child_begin()[f + 1]; ++at) {
      const int32_t child = tree.children()[at];
      const auto [begin, end] = child >= 0 ? std::pair{child, child + 1} : ranges[~child];
      if (next == -2) ranges[f].first = begin;
      if (next != -2 && next != begin) ranges[f].first = -1;
      next = end;
    }
    ranges[f].second = next;
  }
  return ranges;
}

TEST(SplitFamilies, SmallFamiliesStayAsTheyAre) {
  Tree tree, split;
  ASSERT_TRUE(tree_from_brackets("[MAX 2 [MIN 4 7 ] 0 ] 3", &tree).ok());
  ASSERT_TRUE(split_families(tree, 5, &split).ok());
  EXPECT_EQ(split.child_begin(), tree.child_begin());
  EXPECT_EQ(split.children(), tree.children());
  ASSERT_TRUE(split_families(Tree(), 2, &split).ok());
  EXPECT_EQ(split.tokens(), 0);
}

TEST(SplitFamilies, PowersBecomeBalanced) {
  Tree star, split, balanced;
  for (const int64_t tokens : {2, 4, 8, 64}) {
    ASSERT_TRUE(star_tree(tokens, Domain::kSequence, &star).ok());
    ASSERT_TRUE(split_families(star, 2, &split).ok());
    ASSERT_TRUE(balanced_tree(tokens, 2, Domain::kSequence, &balanced).ok());
    EXPECT_EQ(split.children(), balanced.children()) << tokens;
    EXPECT_EQ(split.child_begin(), balanced.child_begin()) << tokens;
  }
}

TEST(SplitFamilies, EvenlyFilled) {
  Tree star, split;
  ASSERT_TRUE(star_tree(17, Domain::kSet, &star).ok());
  ASSERT_TRUE(split_families(star, 4, &split).ok());
  EXPECT_EQ(sizes_of(split), (std::vector<int32_t>{2, 2, 3, 3, 3, 4, 3, 4}));  // 17 = 5 families = 2 families
  EXPECT_EQ(split.depth(), 3);
  for (int64_t f = 0; f < split.families(); ++f) EXPECT_EQ(split.domain(f), Domain::kSet);
  for (const int64_t tokens : {9, 100, 1000, 1025}) {
    for (const int64_t most : {2, 3, 8, 99}) {
      ASSERT_TRUE(star_tree(tokens, Domain::kSequence, &star).ok());
      ASSERT_TRUE(split_families(star, most, &split).ok());
      int32_t largest = 0, smallest = 1 << 30;  // of those that hold tokens
      for (int64_t f = 0; f < split.families(); ++f) {
        if (split.children()[split.child_begin()[f]] < 0) continue;
        largest = std::max(largest, sizes_of(split)[f]), smallest = std::min(smallest, sizes_of(split)[f]);
      }
      EXPECT_LE(largest, most);
      EXPECT_LE(largest - smallest, 1) << tokens << " " << most;
      EXPECT_EQ(ranges_of(split)[0], (std::pair{0, static_cast<int32_t>(tokens)}));
      EXPECT_EQ(split.domain(split.families() - 1), Domain::kSequence);
    }
  }
}

// On many trees: sizes are bounded, leaves are in order, and every old family still covers its leaves.
TEST(SplitFamilies, KeepsTheFamiliesOfBefore) {
  const std::string lines =
      make_listops({.rows = 200, .min_length = 10, .max_length = 400, .max_depth = 6, .max_args = 30});
  int64_t were_split = 0;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = lines.find('\n', at);
    const std::string expression = lines.substr(at + 2, end - at - 2);
    at = end + 1;
    Tree tree, split;
    ASSERT_TRUE(tree_from_brackets(expression, &tree).ok());
    const auto before = ranges_of(tree);
    for (const int64_t most : {2, 3, 7}) {
      ASSERT_TRUE(split_families(tree, most, &split).ok());
      EXPECT_LE(split.largest_family(), most);
      EXPECT_EQ(split.tokens(), tree.tokens());
      were_split += split.families() > tree.families();
      const auto after = ranges_of(split);
      const std::multiset<std::pair<int32_t, int32_t>> kept(after.begin(), after.end());
      for (const auto& range : before) EXPECT_GE(kept.count(range), 1U) << expression;
      for (const auto& range : after) EXPECT_GE(range.first, 0) << expression;
    }
  }
  EXPECT_GT(were_split, 300);
}

TEST(SplitFamilies, Grids) {
  Tree tree, split;
  ASSERT_TRUE(quadtree(3, 3, &tree).ok());
  ASSERT_TRUE(split_families(tree, 4, &split).ok());  // small enough: grids stay grids
  EXPECT_EQ(split.children(), tree.children());
  for (int64_t f = 0; f < split.families(); ++f) {
    EXPECT_EQ(split.domain(f), Domain::kGrid);
    EXPECT_EQ(split.width(f), tree.width(f));
    EXPECT_EQ(split.kind(f), tree.kind(f));
  }
  Tree untouched;
  EXPECT_EQ(split_families(tree, 3, &untouched).message(),
            "family 0: a grid of 4 children cannot be split into families of 3");
  EXPECT_EQ(untouched.tokens(), 0);
  EXPECT_EQ(split_families(tree, 1, &untouched).message(), "max_children: expected 2 or more, got 1");
}

// In place: the result may be the tree itself.
TEST(SplitFamilies, IntoItself) {
  Tree tree;
  ASSERT_TRUE(star_tree(9, Domain::kSequence, &tree).ok());
  ASSERT_TRUE(split_families(tree, 3, &tree).ok());
  EXPECT_EQ(sizes_of(tree), (std::vector<int32_t>{3, 3, 3, 3}));
}

}  // namespace
}  // namespace strata
