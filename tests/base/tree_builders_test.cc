// Builders of trees: what they build, and refusals that name the place.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "strata/tree.h"

namespace strata::test {
namespace {

// Families in breadth-first order, as Tree::make takes them: "0 1 | ~1 2".
std::string families(const Tree& tree) {
  std::ostringstream out;
  for (int64_t f = 0; f < tree.families(); ++f) {
    if (f > 0) out << " | ";
    for (int32_t at = tree.child_begin()[f]; at < tree.child_begin()[f + 1]; ++at) {
      const int32_t child = tree.children()[at];
      out << (at > tree.child_begin()[f] ? " " : "") << (child < 0 ? "~" : "") << (child < 0 ? ~child : child);
    }
  }
  return out.str();
}

// ------------------------------------------------------------------------------------------------- windows

TEST(TreeBuilders, Star) {
  Tree tree;
  ASSERT_TRUE(star_tree(4, Domain::kSequence, &tree).ok());
  EXPECT_EQ(families(tree), "0 1 2 3");
  EXPECT_EQ(tree.domain(0), Domain::kSequence);
  ASSERT_TRUE(star_tree(1, Domain::kSet, &tree).ok());
  EXPECT_EQ(tree.to_string(), "Tree: 1 tokens, 1 families, depth 1, score products 1\n  set of 1: tokens 0 .. 0\n");
  ASSERT_TRUE(star_tree(0, Domain::kSet, &tree).ok());
  EXPECT_EQ(tree.families(), 0);
  EXPECT_EQ(star_tree(-1, Domain::kSet, &tree).message(), "tokens: expected 0 to 2^31 - 1, got -1");
}

TEST(TreeBuilders, Balanced) {
  Tree tree;
  ASSERT_TRUE(balanced_tree(5, 2, Domain::kSequence, &tree).ok());
  EXPECT_EQ(families(tree), "~1 ~2 | ~3 ~4 | ~5 | 0 1 | 2 3 | 4");
  EXPECT_EQ(tree.depth(), 3);
  ASSERT_TRUE(balanced_tree(9, 3, Domain::kSequence, &tree).ok());
  EXPECT_EQ(families(tree), "~1 ~2 ~3 | 0 1 2 | 3 4 5 | 6 7 8");
  EXPECT_EQ(tree.cost(), 4 * 9);
  ASSERT_TRUE(balanced_tree(1, 4, Domain::kSet, &tree).ok());
  EXPECT_EQ(families(tree), "0");
  ASSERT_TRUE(balanced_tree(0, 4, Domain::kSet, &tree).ok());
  EXPECT_EQ(tree.families(), 0);
  EXPECT_EQ(balanced_tree(4, 1, Domain::kSet, &tree).message(), "branching: expected 2 or more, got 1");
  EXPECT_EQ(balanced_tree(-4, 2, Domain::kSet, &tree).message(), "tokens: expected 0 to 2^31 - 1, got -4");
}

TEST(TreeBuilders, WindowsRepeatTheLast) {
  Tree tree;
  ASSERT_TRUE(window_tree(12, {3, 2}, 0, Domain::kSet, &tree).ok());
  EXPECT_EQ(families(tree), "~1 ~2 | ~3 ~4 | ~5 ~6 | 0 1 2 | 3 4 5 | 6 7 8 | 9 10 11");
}

TEST(TreeBuilders, ShiftMovesTheFirstBoundary) {
  Tree tree;
  ASSERT_TRUE(window_tree(6, {3, 4}, 1, Domain::kSet, &tree).ok());
  EXPECT_EQ(families(tree), "~1 ~2 ~3 | 0 | 1 2 3 | 4 5");
  ASSERT_TRUE(window_tree(2, {3}, 2, Domain::kSet, &tree).ok());
  EXPECT_EQ(families(tree), "0 1");
}

TEST(TreeBuilders, WindowRefusals) {
  Tree tree;
  EXPECT_EQ(window_tree(4, {}, 0, Domain::kSet, &tree).message(), "windows: expected at least one size, got none");
  EXPECT_EQ(window_tree(4, {2, 1}, 0, Domain::kSet, &tree).message(),
            "windows[1]: expected 2 or more children per family, got 1");
  EXPECT_EQ(window_tree(4, {2}, 2, Domain::kSet, &tree).message(), "shift: expected 0 to 1, got 2");
  EXPECT_EQ(window_tree(4, {2}, -1, Domain::kSet, &tree).message(), "shift: expected 0 to 1, got -1");
  EXPECT_EQ(window_tree(-1, {2}, 0, Domain::kSet, &tree).message(), "tokens: expected 0 to 2^31 - 1, got -1");
}

// ------------------------------------------------------------------------------------------------- images

TEST(TreeBuilders, EndsAreSiblingsOfTheTree) {
  Tree inner, tree;
  ASSERT_TRUE(window_tree(5, {2}, 0, Domain::kSet, &inner).ok());
  ASSERT_TRUE(tree_with_ends(inner, 2, 1, &tree).ok());
  EXPECT_EQ(tree.tokens(), 8);
  EXPECT_EQ(tree.families(), inner.families() + 1);
  EXPECT_EQ(tree.domain(0), Domain::kSequence);
  EXPECT_EQ(tree.domain(1), Domain::kSet);
  EXPECT_EQ(tree.children()[2], ~1);
  EXPECT_EQ(tree.cost(), inner.cost() + 16);
  ASSERT_TRUE(window_tree(0, {2}, 0, Domain::kSet, &inner).ok());
  ASSERT_TRUE(tree_with_ends(inner, 1, 2, &tree).ok());
  EXPECT_EQ(tree.families(), 1);
  EXPECT_EQ(tree_with_ends(inner, -1, 2, &tree).message(), "before, behind: expected 0 or more, got -1 and 2");
}

TEST(TreeBuilders, QuadtreeOrderIsAPermutation) {
  const std::pair<int64_t, int64_t> sizes[] = {{8, 8}, {3, 5}, {1, 7}, {7, 1}, {1, 1}, {2, 2}, {6, 9}};
  for (const auto& [height, width] : sizes) {
    std::vector<int64_t> order = quadtree_order(height, width);
    Tree tree;
    ASSERT_TRUE(quadtree(height, width, &tree).ok()) << height << " x " << width;
    EXPECT_EQ(tree.tokens(), height * width);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> all(height * width);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all) << height << " x " << width;
  }
}

TEST(TreeBuilders, QuadtreeFamiliesAreBlocks) {
  Tree tree;
  ASSERT_TRUE(quadtree(8, 8, &tree).ok());
  EXPECT_EQ(tree.families(), 1 + 4 + 16);
  EXPECT_EQ(tree.depth(), 3);
  EXPECT_EQ(tree.largest_family(), 4);
  const std::vector<int64_t> order = quadtree_order(8, 8);
  int blocks = 0;
  for (int64_t f = 0; f < tree.families(); ++f) {
    EXPECT_EQ(tree.domain(f), Domain::kGrid);
    EXPECT_EQ(tree.width(f), 2);
    const int32_t* child = &tree.children()[tree.child_begin()[f]];
    if (child[0] < 0) continue;
    const int64_t corner = order[child[0]];
    EXPECT_EQ(corner / 8 % 2, 0);
    EXPECT_EQ(corner % 2, 0);
    EXPECT_EQ(order[child[1]], corner + 1);
    EXPECT_EQ(order[child[2]], corner + 8);
    EXPECT_EQ(order[child[3]], corner + 9);
    ++blocks;
  }
  EXPECT_EQ(blocks, 16);
}

TEST(TreeBuilders, QuadtreeIsCutAtTheBorder) {
  Tree tree;
  ASSERT_TRUE(quadtree(1, 3, &tree).ok());
  EXPECT_EQ(families(tree), "~1 ~2 | 0 1 | 2");
  EXPECT_EQ(tree.width(0), 2);
  EXPECT_EQ(tree.width(2), 1);
  ASSERT_TRUE(quadtree(3, 1, &tree).ok());
  EXPECT_EQ(families(tree), "~1 ~2 | 0 1 | 2");
  EXPECT_EQ(tree.width(0), 1);
  EXPECT_EQ(quadtree_order(2, 3), (std::vector<int64_t>{0, 1, 3, 4, 2, 5}));
  ASSERT_TRUE(quadtree(0, 5, &tree).ok());
  EXPECT_EQ(tree.families(), 0);
  EXPECT_TRUE(quadtree_order(0, 5).empty());
  EXPECT_EQ(quadtree(-1, 5, &tree).message(), "height, width: expected 0 or more, got -1 and 5");
  EXPECT_EQ(quadtree(1, 40000, &tree).message(), "height, width: expected at most 32768, got 1 and 40000");
}

// ----------------------------------------------------------------------------- parents and brackets

TEST(TreeBuilders, Parents) {
  Tree tree;
  ASSERT_TRUE(tree_from_parents({-1, 0, 0, 1, 1, 2}, Domain::kSequence, &tree).ok());
  EXPECT_EQ(families(tree), "~1 ~2 | 0 1 | 2");
  // Node 3 is the root; its child 4 holds the first tokens, so it stands first.
  ASSERT_TRUE(tree_from_parents({4, 4, 3, -1, 3}, Domain::kGrid, &tree).ok());
  EXPECT_EQ(families(tree), "~1 2 | 0 1");
  EXPECT_EQ(tree.width(1), 1);
  ASSERT_TRUE(tree_from_parents({-1}, Domain::kSet, &tree).ok());
  EXPECT_EQ(families(tree), "0");
  ASSERT_TRUE(tree_from_parents({}, Domain::kSet, &tree).ok());
  EXPECT_EQ(tree.tokens(), 0);
}

TEST(TreeBuilders, ParentsRefusals) {
  Tree tree;
  const auto message = [&](const std::vector<int64_t>& parent) {
    return tree_from_parents(parent, Domain::kSet, &tree).message();
  };
  EXPECT_EQ(message({-1, 2}), "parent[1]: expected -1 (the root) or another node below 2, got 2");
  EXPECT_EQ(message({-1, -2}), "parent[1]: expected -1 (the root) or another node below 2, got -2");
  EXPECT_EQ(message({-1, 1}), "parent[1]: expected -1 (the root) or another node below 2, got 1");
  EXPECT_EQ(message({-1, 0, -1}), "parent[2]: is a second root; expected one, and node 0 is the first");
  EXPECT_EQ(message({1, 0}), "parent: expected one root (-1), got none; the nodes form a cycle");
  EXPECT_EQ(message({-1, 0, 3, 2}), "parent: 2 nodes are not connected to the root 0; they form a cycle");
  // Crossing branches: tokens 0 and 2 under one node, 1 under the other.
  EXPECT_NE(message({3, 4, 3, 5, 5, -1}).find("without overlap or gap"), std::string::npos);
}

TEST(TreeBuilders, Brackets) {
  Tree tree;
  ASSERT_TRUE(tree_from_brackets("[MAX 2 9 [MIN 4 7 ] 0 ]", &tree).ok());
  EXPECT_EQ(families(tree), "~1 | 0 1 2 ~2 7 8 | 3 4 5 6");
  ASSERT_TRUE(tree_from_brackets(" a\tb\r\nc ", &tree).ok());
  EXPECT_EQ(families(tree), "0 1 2");
  ASSERT_TRUE(tree_from_brackets("x", &tree).ok());
  EXPECT_EQ(families(tree), "0");
  ASSERT_TRUE(tree_from_brackets(" \n", &tree).ok());
  EXPECT_EQ(tree.tokens(), 0);
  EXPECT_EQ(tree.families(), 0);
}

TEST(TreeBuilders, BracketsRefusals) {
  Tree tree;
  EXPECT_EQ(tree_from_brackets("[A 1 ] ]", &tree).message(), "brackets: \"]\" at byte 7 closes no bracket");
  EXPECT_EQ(tree_from_brackets("[A [B 1 ]", &tree).message(),
            "brackets: 1 brackets are still open at the end of the text");
}

}  // namespace
}  // namespace strata::test
