// Trees: what Tree::make takes and refuses, and what a tree says of itself.
#include "strata/tree.h"

#include <gtest/gtest.h>

#include <sstream>

namespace strata::test {
namespace {

// An offset in the middle that points past the children must not be followed.
TEST(TreeMake, OffsetsBeyondTheChildrenAreRefused) {
  Tree tree;
  const Status status = Tree::make(2, {0, 1000, 2}, {0, 1}, {Domain::kSet, Domain::kSet}, {0, 0}, &tree);
  EXPECT_NE(status.message().find("family 0: child_begin goes from 0 to 1000"), std::string::npos) << status.message();
}

TEST(TreeBuilders, AbsurdSizesAreRefusedBeforeTheyCost) {
  Tree tree;
  EXPECT_FALSE(star_tree(int64_t{1} << 40, Domain::kSet, &tree).ok());
  EXPECT_FALSE(window_tree(int64_t{1} << 40, {2}, 0, Domain::kSet, &tree).ok());
  EXPECT_TRUE(window_tree(10, {int64_t{1} << 62}, 3, Domain::kSet, &tree).ok());
  EXPECT_EQ(tree.tokens(), 10);
}

struct Parts {
  int64_t tokens = 0;
  std::vector<int32_t> child_begin, children;
  std::vector<Domain> domains;
  std::vector<int32_t> widths;
};

// Five tokens: ((0 1) 2 (3 4)).
Parts small() {
  return {5, {0, 3, 5, 7}, {~1, 2, ~2, 0, 1, 3, 4}, {Domain::kSequence, Domain::kSet, Domain::kGrid}, {0, 0, 2}};
}

Status make(const Parts& parts, Tree* tree) {
  return Tree::make(parts.tokens, parts.child_begin, parts.children, parts.domains, parts.widths, tree);
}

std::string refusal(const Parts& parts) {
  Tree tree;
  const Status status = make(parts, &tree);
  EXPECT_EQ(tree.tokens(), 0) << "a refusal must leave the result alone";
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument);
  return status.message();
}

TEST(Tree, SmallTree) {
  Tree tree;
  ASSERT_TRUE(make(small(), &tree).ok());
  EXPECT_EQ(tree.tokens(), 5);
  EXPECT_EQ(tree.families(), 3);
  EXPECT_EQ(tree.depth(), 2);
  EXPECT_EQ(tree.cost(), 9 + 4 + 4);
  EXPECT_EQ(tree.largest_family(), 3);
  EXPECT_EQ(tree.domain(1), Domain::kSet);
  EXPECT_EQ(tree.width(2), 2);
  EXPECT_EQ(tree.position_tables(), 3);  // a sequence uses table 0, a grid that of its width, a set none
  const TreeView view = tree.view();
  EXPECT_EQ(view.tokens, 5);
  EXPECT_EQ(view.families, 3);
  EXPECT_EQ(std::vector<int32_t>(view.kind, view.kind + 3), (std::vector<int32_t>{0, -1, 2}));
}

TEST(Tree, ToString) {
  Tree tree;
  ASSERT_TRUE(make(small(), &tree).ok());
  const std::string picture =
      "Tree: 5 tokens, 3 families, depth 2, score products 17\n"
      "  sequence of 3\n"
      "    set of 2: tokens 0 .. 1\n"
      "    token 2\n"
      "    grid of 2, 2 wide: tokens 3 .. 4\n";
  EXPECT_EQ(tree.to_string(), picture);
  std::ostringstream out;
  out << tree;
  EXPECT_EQ(out.str(), picture);
  EXPECT_EQ(tree.to_string(2),
            "Tree: 5 tokens, 3 families, depth 2, score products 17\n"
            "  sequence of 3\n"
            "    set of 2: tokens 0 .. 1\n"
            "  .. and more\n");
}

TEST(Tree, NoTokens) {
  Tree tree;
  EXPECT_EQ(tree.to_string(), "Tree: 0 tokens, 0 families, depth 0, score products 0\n");
  ASSERT_TRUE(Tree::make(0, {0}, {}, {}, {}, &tree).ok());
  EXPECT_EQ(tree.depth(), 0);
  EXPECT_EQ(tree.cost(), 0);
  EXPECT_EQ(tree.largest_family(), 0);
  EXPECT_EQ(tree.position_tables(), 0);
}

TEST(Tree, DomainNames) {
  EXPECT_STREQ(domain_name(Domain::kSet), "set");
  EXPECT_STREQ(domain_name(Domain::kSequence), "sequence");
  EXPECT_STREQ(domain_name(Domain::kGrid), "grid");
}

TEST(Tree, RefusesWrongCounts) {
  Parts parts = small();
  parts.child_begin.pop_back();
  EXPECT_EQ(refusal(parts), "child_begin: expected families + 1 = 4 offsets from 0 to 7");
  parts = small();
  parts.child_begin.back() = 6;
  EXPECT_EQ(refusal(parts), "child_begin: expected families + 1 = 4 offsets from 0 to 7");
  parts = small();
  parts.child_begin.front() = 1;
  EXPECT_EQ(refusal(parts), "child_begin: expected families + 1 = 4 offsets from 0 to 7");
  parts = small();
  parts.widths.pop_back();
  EXPECT_EQ(refusal(parts), "widths: expected one per family (3), got 2");
  EXPECT_EQ(refusal({0, {}, {}, {}, {}}), "child_begin: expected families + 1 = 1 offsets from 0 to 0");
  EXPECT_EQ(refusal({-1, {0}, {}, {}, {}}), "tokens: expected 0 to 2^31 - 1, got -1");
  EXPECT_EQ(refusal({int64_t{1} << 31, {0}, {}, {}, {}}), "tokens: expected 0 to 2^31 - 1, got 2147483648");
  EXPECT_EQ(Tree::make(0, {0}, {}, {}, {}, nullptr).message(), "tree: expected a place for the result, got null");
}

TEST(Tree, RefusesOffsetsThatDecrease) {
  Parts parts = small();
  parts.child_begin = {0, 3, 2, 7};
  EXPECT_EQ(refusal(parts), "family 1: child_begin goes from 3 to 2; expected increasing offsets of at most 7");
}

TEST(Tree, RefusesAMissingRoot) {
  EXPECT_EQ(refusal({3, {0}, {}, {}, {}}), "root: expected a family over 3 tokens, got none");
}

TEST(Tree, RefusesARootThatLeavesTokensOut) {
  EXPECT_EQ(refusal({4, {0, 2}, {1, 2}, {Domain::kSet}, {0}}), "root: covers tokens 1 to 2, expected 0 to 3");
  EXPECT_EQ(refusal({3, {0, 2}, {0, 1}, {Domain::kSet}, {0}}), "root: covers tokens 0 to 1, expected 0 to 2");
}

TEST(Tree, RefusesAnEmptyFamily) {
  Parts parts = small();
  parts.child_begin = {0, 3, 3, 7};
  EXPECT_EQ(refusal(parts), "family 1: has no children; a family needs at least one");
}

TEST(Tree, RefusesATokenOutOfRange) {
  Parts parts = small();
  parts.children.back() = 5;
  EXPECT_EQ(refusal(parts), "family 2: token 5 is out of range 0 to 4");
}

TEST(Tree, RefusesGapOverlapAndWrongOrder) {
  const std::string no_gap = "; expected children without overlap or gap";
  Parts parts = small();
  parts.children = {~1, 2, ~2, 0, 2, 3, 4};
  EXPECT_EQ(refusal(parts), "family 1: child 1 begins at token 2, the child before it ends at 1" + no_gap);
  parts.children = {~1, 2, ~2, 0, 1, 2, 3};
  EXPECT_EQ(refusal(parts), "family 0: child 2 begins at token 2, the child before it ends at 3" + no_gap);
  parts.children = {~1, 2, ~2, 1, 0, 3, 4};
  EXPECT_EQ(refusal(parts), "family 1: child 1 begins at token 0, the child before it ends at 2" + no_gap);
}

TEST(Tree, RefusesCyclesSharedChildrenAndOrphans) {
  const std::string one_parent = "; every family but the root has exactly one parent";
  Parts parts = small();
  parts.children = {~1, 2, ~1, 0, 1, 3, 4};
  EXPECT_EQ(refusal(parts), "family 0: inner child 1 breaks the breadth-first order, the next one is 2" + one_parent);
  parts.children = {~1, 2, ~2, 0, ~0, 3, 4};
  EXPECT_EQ(refusal(parts), "family 1: inner child 0 breaks the breadth-first order, the next one is 3" + one_parent);
  parts.children = {~2, 2, ~1, 0, 1, 3, 4};
  EXPECT_EQ(refusal(parts), "family 0: inner child 2 breaks the breadth-first order, the next one is 1" + one_parent);
  parts.children = {~1, 2, ~2, 0, ~3, 3, 4};
  EXPECT_EQ(refusal(parts), "family 1: inner child 3 is out of range 1 to 2");
  parts.children = {~1, 2, 3, 0, 1, 3, 4};
  EXPECT_EQ(refusal(parts), "family 2: is not a child of any family");
}

TEST(Tree, RefusesAWrongGridWidth) {
  for (int32_t width : {-1, 0, 3}) {
    Parts parts = small();
    parts.widths.back() = width;
    EXPECT_EQ(refusal(parts),
              "family 2: expected a grid width of 1 to 2, its number of children, got " + std::to_string(width));
  }
}

TEST(Tree, OneTokenUnderAChainOfAMillionFamilies) {
  const int32_t n = 1000000;
  Parts parts{1, {}, {}, std::vector<Domain>(n, Domain::kSet), std::vector<int32_t>(n, 0)};
  for (int32_t f = 0; f <= n; ++f) parts.child_begin.push_back(f);
  for (int32_t f = 1; f < n; ++f) parts.children.push_back(~f);
  parts.children.push_back(0);
  Tree tree;
  ASSERT_TRUE(make(parts, &tree).ok());
  EXPECT_EQ(tree.depth(), n);
  EXPECT_EQ(tree.cost(), n);
  EXPECT_FALSE(tree.to_string().empty());
}

TEST(TreeCost, CoarseRowsOfLeavesCountOnce) {
  Tree star, balanced;
  ASSERT_TRUE(star_tree(10, Domain::kSet, &star).ok());
  EXPECT_EQ(star.cost(), 100);
  EXPECT_EQ(star.cost(3), 10 * 10 + 5 * 5 + 3 * 3);
  ASSERT_TRUE(balanced_tree(12, 3, Domain::kSet, &balanced).ok());  // leaves 0 1 2, 3 4 5, .. in a tree of 3 and 2
  int64_t inner = 0;
  for (int64_t f = 0; f < balanced.families(); ++f) {
    const int64_t size = balanced.child_begin()[f + 1] - balanced.child_begin()[f];
    if (balanced.children()[balanced.child_begin()[f]] < 0) inner += 2 * size * size;
  }
  EXPECT_EQ(balanced.cost(2), inner + 4 * (3 * 3 + 2 * 2));
}

}  // namespace
}  // namespace strata::test
