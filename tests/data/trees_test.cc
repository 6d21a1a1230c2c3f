// Trees of rows: what each kind gives, split families, and texts of which every byte is a leaf.
#include "data/trees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "data/listops.h"
#include "data/support.h"
#include "data/task.h"
#include "strata/document.h"
#include "util/random.h"

namespace strata {
namespace {

template <class Leaf>
void draw(const Tree& tree, int32_t node, Leaf& leaf, std::string& out) {
  if (node >= 0) {
    out += leaf(node);
    return;
  }
  out += '(';
  for (int32_t at = tree.child_begin()[~node]; at < tree.child_begin()[~node + 1]; ++at) {
    draw(tree, tree.children()[at], leaf, out);
  }
  out += ')';
}

// The tree in one line: families in parentheses, leaves as leaf(token) writes them.
template <class Leaf>
std::string picture(const Tree& tree, Leaf leaf) {
  std::string out;
  draw(tree, ~0, leaf, out);
  return out;
}

// Leaves from left to right; 0, 1, 2 .. in a tree that keeps the order.
std::vector<int32_t> leaves_of(const Tree& tree) {
  std::vector<int32_t> leaves, stack;
  if (tree.families() > 0) stack.push_back(~0);
  while (!stack.empty()) {
    const int32_t node = stack.back();
    stack.pop_back();
    if (node >= 0) {
      leaves.push_back(node);
      continue;
    }
    for (int32_t at = tree.child_begin()[~node + 1] - 1; at >= tree.child_begin()[~node]; --at)
      stack.push_back(tree.children()[at]);
  }
  return leaves;
}

std::vector<int32_t> counting(int64_t size) {
  std::vector<int32_t> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::shared_ptr<const Tree> tree_of(const std::string& kind, int64_t branching, std::span<const Token> tokens) {
  return TreeMaker(kind, branching).tree(tokens);
}

std::string text_picture(const std::string& text, int64_t branching = 100) {
  const std::shared_ptr<const Tree> tree = tree_of("text", branching, byte_tokens(text));
  EXPECT_EQ(leaves_of(*tree), counting(static_cast<int64_t>(text.size()))) << text;
  return picture(*tree, [&](int32_t t) { return std::string(1, text[t]); });
}

std::string listops_picture(const std::string& expression, int64_t branching) {
  std::string unknown;
  const std::vector<Token> tokens = listops_tokens(expression, &unknown);
  const std::shared_ptr<const Tree> tree = tree_of("brackets", branching, tokens);
  EXPECT_EQ(leaves_of(*tree), counting(static_cast<int64_t>(tokens.size())));
  return picture(*tree, [&](int32_t t) { return std::string(listops_word(tokens[t])) + " "; });
}

// ------------------------------------------------------------------------------------------------- kinds

TEST(TreeMaker, EveryKindHasALeafPerToken) {
  const Dataset lists = read_listops(
      make_listops({.rows = 100, .min_length = 1, .max_length = 200, .max_depth = 6, .max_args = 20}), "", 200);
  Random random(5);
  for (const std::string& kind : tree_kinds()) {
    for (const int64_t branching : {2, 3, 8}) {
      TreeMaker maker(kind, branching);
      for (int64_t i = 0; i < lists.size(); ++i) {
        std::vector<Token> tokens(lists.row(i).begin(), lists.row(i).end());
        if (kind != "brackets") {  // any bytes
          const bool image = kind == "quadtree" || kind == "captioned";
          tokens.resize(image ? i % 20 * (i % 20) : 1 + random.below(300));
          for (Token& token : tokens) token = static_cast<Token>(1 + random.below(256));
          if (kind == "captioned") tokens.resize(tokens.size() + i % 9, kByteVocabulary);
        }
        const std::shared_ptr<const Tree> tree = maker.tree(tokens);
        ASSERT_EQ(leaves_of(*tree), counting(static_cast<int64_t>(tokens.size()))) << kind;
        EXPECT_LE(tree->position_tables(), kind == "star" ? 0 : maker.position_tables()) << kind;
        if (kind == "star") continue;
        EXPECT_LE(tree->largest_family(), maker.position_places()) << kind << " " << branching;
        EXPECT_LE(tree->largest_family(), kind == "quadtree"    ? 4
                                          : kind == "captioned" ? std::max<int64_t>(branching, 4)
                                                                : branching)
            << kind;
      }
    }
  }
}

TEST(TreeMaker, TreesThatOnlyDependOnTheLengthAreShared) {
  const std::vector<Token> a(16, 1), b(16, 2), c(9, 1);
  for (const std::string& kind : tree_kinds()) {
    if (kind == "brackets") continue;
    TreeMaker maker(kind, 4);
    EXPECT_EQ(maker.tree(a) == maker.tree(b), kind != "text") << kind;
    EXPECT_EQ(maker.tree(c)->tokens(), 9) << kind;
  }
}

TEST(TreeMaker, Brackets) {
  EXPECT_EQ(listops_picture("[MAX 2 [MIN 4 7 ] 0 ]", 8), "(([MAX 2 ([MIN 4 7 ] )0 ] ))");
  EXPECT_EQ(listops_picture("5", 8), "(5 )");
  EXPECT_EQ(listops_picture("[SM 1 2 3 4 5 6 ]", 4), "((([SM 1 2 3 )(4 5 6 ] )))");
  const Token open[] = {11, 2};
  EXPECT_SAYS(error_of(ExitCode::kData, [&] { tree_of("brackets", 4, open); }),
              "tree: brackets: 1 brackets are still open");
}

TEST(TreeMaker, QuadtreeOrder) {
  const TreeMaker maker("quadtree", 9);
  EXPECT_EQ(maker.order(std::vector<Token>(16, 1)),
            (std::vector<int64_t>{0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15}));
  EXPECT_EQ(maker.order(std::vector<Token>(1024, 1)), quadtree_order(32, 32));
  const std::shared_ptr<const Tree> tree = tree_of("quadtree", 9, std::vector<Token>(16, 1));
  EXPECT_EQ(picture(*tree, [](int32_t t) { return std::to_string(t) + " "; }),
            "((0 1 2 3 )(4 5 6 7 )(8 9 10 11 )(12 13 14 15 ))");
  EXPECT_EQ(tree->domain(0), Domain::kGrid);
  for (const std::string& kind : tree_kinds()) {
    EXPECT_EQ(TreeMaker(kind, 4).order(std::vector<Token>(16, 1)).empty(), kind != "quadtree" && kind != "captioned")
        << kind;
  }
  EXPECT_EQ(error_of(ExitCode::kData, [&] { maker.order(std::vector<Token>(15, 1)); }),
            "tree: expected a square image for a quadtree, got 15 pixels");
  EXPECT_EQ(error_of(ExitCode::kData, [&] { tree_of("quadtree", 4, std::vector<Token>(2, 1)); }),
            "tree: expected a square image for a quadtree, got 2 pixels");
}

TEST(TreeMaker, TextIsParagraphsSentencesWordsBytes) {
  EXPECT_EQ(text_picture("Hi you. Bye"), "((((Hi)( you.))(( Bye))))");
  EXPECT_EQ(text_picture(" a\n\n b \n"), "(((( a)))(((\n\n b \n))))");
  EXPECT_EQ(text_picture("abcdefg", 4), "(((((abc)(defg)))))");
  EXPECT_EQ(text_picture("a<br />b"), "((((a)(<br />b))))");                        // a line end
  EXPECT_EQ(text_picture("a b<br /><br />c"), "((((a)( b)))(((<br /><br />c))))");  // a paragraph
  EXPECT_EQ(text_picture("a<br /> <br />"), "((((a<br /> <br />))))");
  EXPECT_EQ(text_picture("a<br/>b"), "((((a<br/>b))))");  // another mark: letters
}

TEST(TreeMaker, TextsOfWhiteSpaceAndOfBrokenCharacters) {
  EXPECT_EQ(text_picture(" \n\n "), "((( \n\n )))");
  EXPECT_EQ(text_picture(" \n\n \t", 4), "(((( \n)(\n \t))))");
  EXPECT_EQ(text_picture("caf\xc3\xa9 au"), "((((caf\xc3\xa9)( au))))");
  EXPECT_EQ(text_picture("au caf\xc3"), "((((au)( caf\xc3))))");  // cut off after a first byte
  EXPECT_EQ(text_picture("a \xe2\x80"), "((((a)( \xe2\x80))))");
  EXPECT_EQ(text_picture("\x80 b"), "((((\x80)( b))))");
  EXPECT_EQ(text_picture("a\xe2\x80\xa8"
                         "b"),
            "((((a)(\xe2\x80\xa8"
            "b))))");  // a line separator is white space,
  EXPECT_EQ(text_picture("a\xe2\x80\xa8"
                         "b\xff"),
            "((((a\xe2\x80\xa8"
            "b\xff))))");  // but letters in a broken text
  EXPECT_EQ(tree_of("text", 4, {})->tokens(), 0);
}

// ------------------------------------------------------------------------------------------------- bytes as leaves

TEST(ByteLeaves, EveryByteOnceAndInOrder) {
  const std::string pieces[] = {" ",
                                "\n",
                                "\r\n",
                                "\t",
                                "a",
                                "bc",
                                ".",
                                "!",
                                ")",
                                "\"",
                                "\xc3\xa9",
                                "\xe2\x80\xa6",
                                "\xe2\x80\xa8",
                                "\xe3\x80\x80",
                                "\xe3\x80\x82",
                                "\xef\xbb\xbf",
                                "\xf0\x9f\x8c\xb3",
                                std::string(1, '\0')};
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const bool ascii = seed % 2 == 0;
    std::string text;
    for (uint32_t left = random.below(40); left > 0; --left)
      text += pieces[random.below(ascii ? 10 : std::size(pieces))];
    Document document;
    ASSERT_TRUE(document_from_text(text, TextLeaf::kByte, &document).ok()) << seed;
    ASSERT_EQ(document.leaves.size(), text.size()) << seed;
    for (size_t t = 0; t < text.size(); ++t) {
      ASSERT_EQ(document.leaves[t].begin, static_cast<int64_t>(t)) << seed;
      ASSERT_EQ(document.leaves[t].end, static_cast<int64_t>(t) + 1) << seed;
    }
    ASSERT_EQ(leaves_of(document.tree), counting(static_cast<int64_t>(text.size()))) << seed;
  }
}

// A word of bytes is the word of kWord with the white space before it, so the sentences of both are the same.
TEST(ByteLeaves, WordsAreThoseOfTheWordBuilder) {
  const std::string text = "\xef\xbb\xbfOne two.  Three!\n\n\"Four\" \xc3\xa9t\xc3\xa9 ";
  Document words, bytes;
  ASSERT_TRUE(document_from_text(text, TextLeaf::kWord, &words).ok());
  ASSERT_TRUE(document_from_text(text, TextLeaf::kByte, &bytes).ok());
  std::string words_only;  // families of bytes alone, as one mark each
  const std::string all = picture(bytes.tree, [](int32_t) { return ""; });
  for (size_t at = 0; at < all.size(); ++at) {
    const bool word = all.compare(at, 2, "()") == 0;
    words_only += word ? 'w' : all[at];
    at += word;
  }
  EXPECT_EQ(words_only, picture(words.tree, [](int32_t) { return "w"; }));
}

}  // namespace
}  // namespace strata
