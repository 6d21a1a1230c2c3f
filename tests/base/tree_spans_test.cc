// Trees from spans: of tokens, by boundaries, of characters; and another domain for a tree.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "strata/tree.h"

namespace strata::test {
namespace {

using Spans = std::vector<Span>;

Tree from_spans(int64_t tokens, const Spans& spans, Domain domain = Domain::kSequence) {
  Tree tree;
  const Status status = tree_from_spans(tokens, spans, domain, &tree);
  EXPECT_TRUE(status.ok()) << status.message();
  return tree;
}

std::string refusal(int64_t tokens, const Spans& spans) {
  Tree tree;
  return tree_from_spans(tokens, spans, Domain::kSet, &tree).message();
}

// A reference that shares nothing with the builder: the parent of a span or token is the smallest span around it.
std::vector<int64_t> parents_by_definition(int64_t tokens, const Spans& families) {
  Spans nodes;  // tokens first, so that the parents builder numbers them in order
  for (int64_t t = 0; t < tokens; ++t) nodes.push_back({t, t + 1});
  nodes.insert(nodes.end(), families.begin(), families.end());
  std::vector<int64_t> parent;
  for (size_t n = 0; n < nodes.size(); ++n) {
    int64_t best = -1, size = std::numeric_limits<int64_t>::max();
    for (size_t p = static_cast<size_t>(tokens); p < nodes.size(); ++p) {
      const bool around = p != n && nodes[p].begin <= nodes[n].begin && nodes[p].end >= nodes[n].end;
      if (around && nodes[p].end - nodes[p].begin < size) {
        best = static_cast<int64_t>(p);
        size = nodes[p].end - nodes[p].begin;
      }
    }
    parent.push_back(best);
  }
  return parent;
}

// Distinct nested spans of two or more tokens, the whole range among them.
Spans random_nested(int64_t tokens, std::mt19937& random) {
  std::set<std::pair<int64_t, int64_t>> found = {{0, tokens}};
  for (int tries = 0; tries < 40; ++tries) {
    const int64_t a = static_cast<int64_t>(random() % (tokens + 1)), b = static_cast<int64_t>(random() % (tokens + 1));
    const auto [begin, end] = std::minmax(a, b);
    const bool crosses = std::any_of(found.begin(), found.end(), [&, b0 = begin, e0 = end](const auto& other) {
      const bool apart = e0 <= other.first || other.second <= b0;
      const bool inside = (b0 >= other.first && e0 <= other.second) || (other.first >= b0 && other.second <= e0);
      return !apart && !inside;
    });
    if (end - begin >= 2 && !crosses) found.insert({begin, end});
  }
  Spans spans;
  for (const auto& [begin, end] : found) spans.push_back({begin, end});
  return spans;
}

bool before(Span x, Span y) { return std::pair(x.begin, -x.end) < std::pair(y.begin, -y.end); }

TEST(TreeSpans, RandomSpansComeBack) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int64_t tokens = 2 + static_cast<int64_t>(random() % 30);
    const Spans spans = random_nested(tokens, random);
    Spans given = spans;
    for (int n = 0; n < 5; ++n) given.push_back(spans[random() % spans.size()]);  // repeated
    const auto place = static_cast<int64_t>(random() % tokens);
    given.push_back({place, place});
    given.push_back({place, place + 1});
    std::shuffle(given.begin(), given.end(), random);
    const Tree tree = from_spans(tokens, given);
    Tree want;
    ASSERT_TRUE(tree_from_parents(parents_by_definition(tokens, spans), Domain::kSequence, &want).ok());
    EXPECT_EQ(tree.children(), want.children());
    EXPECT_EQ(tree.child_begin(), want.child_begin());
    Spans back = tree.spans();
    EXPECT_EQ(back[0], (Span{0, tokens}));
    std::sort(back.begin(), back.end(), before);
    Spans sorted = spans;
    std::sort(sorted.begin(), sorted.end(), before);
    EXPECT_EQ(back, sorted);
  }
}

TEST(TreeSpans, FewTokens) {
  EXPECT_EQ(from_spans(0, {}).families(), 0);
  EXPECT_EQ(from_spans(0, {{0, 0}}).families(), 0);
  EXPECT_TRUE(Tree().spans().empty());
  for (const Spans& spans : {Spans{}, Spans{{0, 1}}, Spans{{0, 0}, {1, 1}}}) {
    EXPECT_EQ(from_spans(1, spans).to_string(),
              "Tree: 1 tokens, 1 families, depth 1, score products 1\n  sequence of 1: tokens 0 .. 0\n");
  }
  EXPECT_EQ(from_spans(3, {}, Domain::kSet).domain(0), Domain::kSet);
}

TEST(TreeSpans, DeepChain) {
  constexpr int64_t kTokens = 100001;
  Spans spans;
  for (int64_t n = 2; n <= kTokens; ++n) spans.push_back({0, n});
  const Tree tree = from_spans(kTokens, spans);
  EXPECT_EQ(tree.depth(), kTokens - 1);
  EXPECT_EQ(tree.cost(), 4 * (kTokens - 1));
  EXPECT_EQ(tree.spans().back(), (Span{0, 2}));
}

TEST(TreeSpans, Refusals) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(refusal(9, {{5, 8}, {0, 2}, {4, 7}}),
            "spans[2] = (4, 7) and spans[0] = (5, 8) cross; expected one inside the other, or nothing shared");
  EXPECT_EQ(refusal(9, {{1, 2}, {-1, 2}}), "spans[1]: expected 0 <= begin <= end <= tokens = 9, got (-1, 2)");
  EXPECT_EQ(refusal(9, {{2, 1}}), "spans[0]: expected 0 <= begin <= end <= tokens = 9, got (2, 1)");
  EXPECT_EQ(refusal(9, {{8, 10}}), "spans[0]: expected 0 <= begin <= end <= tokens = 9, got (8, 10)");
  EXPECT_NE(refusal(9, {{kLeast, kMost}}), "");
  EXPECT_EQ(refusal(-1, {}), "tokens: expected 0 to 2^31 - 1, got -1");
  EXPECT_EQ(refusal(kMost, {}), "tokens: expected 0 to 2^31 - 1, got 9223372036854775807");
}

TEST(TreeSpans, Offsets) {
  Tree tree;
  const Tree want = from_spans(9, {{0, 3}, {3, 7}, {7, 9}});
  ASSERT_TRUE(tree_from_offsets({{0, 3, 7, 9}}, Domain::kSequence, &tree).ok());
  EXPECT_EQ(tree.children(), want.children());
  ASSERT_TRUE(tree_from_offsets({{0, 2, 2, 5, 6, 9}, {0, 3, 3, 5}}, Domain::kSequence, &tree).ok());  // two are empty
  EXPECT_EQ(tree.spans(), (Spans{{0, 9}, {0, 5}, {5, 9}, {0, 2}, {2, 5}, {6, 9}}));
  ASSERT_TRUE(tree_from_offsets({{0}}, Domain::kSequence, &tree).ok());
  EXPECT_EQ(tree.tokens(), 0);

  const auto refused = [&](const std::vector<std::vector<int64_t>>& levels) {
    return tree_from_offsets(levels, Domain::kSequence, &tree).message();
  };
  EXPECT_EQ(refused({}), "offsets: expected at least one level, got none");
  EXPECT_EQ(refused({{}}), "offsets[0]: expected 0 as the first boundary, got none");
  EXPECT_EQ(refused({{1, 2}}), "offsets[0]: expected 0 as the first boundary, got 1");
  EXPECT_EQ(refused({{0, 3, 2}}), "offsets[0][2]: expected at least 3, the boundary before it, got 2");
  EXPECT_EQ(refused({{0, 3, 5}, {0, 3}}),
            "offsets[1]: expected 2, the number of items of the level below, as the last boundary, got 3");
  EXPECT_EQ(refused({{0, 3, 5}, {0, 1}}),
            "offsets[1]: expected 2, the number of items of the level below, as the last boundary, got 1");
  EXPECT_EQ(refused({{0, int64_t{1} << 31}}),
            "offsets[0]: expected at most 2^31 - 1 as the last boundary, got 2147483648");
}

TEST(TreeSpans, Characters) {
  // "Unseen words. End." as [CLS] Un seen _words . _End . [SEP], with the space in the token of the word behind it.
  const Spans tokens = {{0, 0}, {0, 2}, {2, 6}, {6, 12}, {12, 13}, {13, 17}, {17, 18}, {0, 0}};
  const Spans words = {{0, 6}, {7, 13}, {14, 18}}, sentences = {{0, 13}, {14, 18}, {40, 50}};
  Spans both = words;
  both.insert(both.begin(), sentences.begin(), sentences.end());
  Tree tree;
  ASSERT_TRUE(tree_from_character_spans(tokens, both, Domain::kSequence, &tree).ok());
  EXPECT_EQ(tree.spans(), (Spans{{0, 8}, {1, 7}, {1, 5}, {5, 7}, {1, 3}, {3, 5}}));
  // A token without characters belongs to the span around it; tokens may share a character.
  ASSERT_TRUE(tree_from_character_spans({{0, 1}, {0, 0}, {1, 2}, {1, 2}, {3, 4}}, {{0, 2}}, Domain::kSet, &tree).ok());
  EXPECT_EQ(tree.spans(), (Spans{{0, 5}, {0, 4}}));
  ASSERT_TRUE(tree_from_character_spans({{0, 0}, {0, 0}}, {{0, 9}}, Domain::kSet, &tree).ok());
  EXPECT_EQ(tree.spans(), (Spans{{0, 2}}));
  ASSERT_TRUE(tree_from_character_spans({}, {{0, 9}}, Domain::kSet, &tree).ok());
  EXPECT_EQ(tree.tokens(), 0);

  const auto refused = [&](const Spans& offsets, const Spans& spans) {
    return tree_from_character_spans(offsets, spans, Domain::kSet, &tree).message();
  };
  EXPECT_EQ(refused({{3, 5}, {0, 0}, {0, 3}}, {}),
            "offsets[2] = (0, 3) ends before offsets[0] = (3, 5); expected the tokens of one text, in its order");
  EXPECT_EQ(refused({{5, 3}}, {}), "offsets[0]: expected 0 <= begin <= end, got (5, 3)");
  EXPECT_EQ(refused({{0, 9}}, {{0, 5}, {3, 8}}),
            "spans[0] = (0, 5) and spans[1] = (3, 8) cross; expected one inside the other, or nothing shared");
}

TEST(TreeSpans, AnotherDomain) {
  const Tree tree = from_spans(8, {{0, 4}, {4, 8}});
  Tree other;
  for (Domain domain : {Domain::kSet, Domain::kSequence}) {
    ASSERT_TRUE(tree_with_domain(tree, domain, 0, &other).ok());
    EXPECT_EQ(other.children(), tree.children());
    for (int64_t f = 0; f < other.families(); ++f) EXPECT_EQ(other.domain(f), domain);
    EXPECT_EQ(other.position_tables(), domain == Domain::kSequence ? 1 : 0);
  }
  ASSERT_TRUE(tree_with_domain(tree, Domain::kGrid, 2, &other).ok());
  EXPECT_EQ(other.position_tables(), 3);
  EXPECT_EQ(other.width(2), 2);
  EXPECT_EQ(tree_with_domain(tree, Domain::kGrid, 3, &other).message(),
            "family 0: expected a grid width of 1 to 2, its number of children, got 3");
  EXPECT_EQ(tree_with_domain(tree, Domain::kGrid, 0, &other).message(), "width: expected 1 or more for a grid, got 0");
  EXPECT_EQ(tree_with_domain(tree, Domain::kSet, 2, &other).message(),
            "width: expected 0, as only a grid has one, got 2 for the domain set");
  EXPECT_TRUE(tree_with_domain(Tree(), Domain::kGrid, 2, &other).ok());
}

}  // namespace
}  // namespace strata::test
