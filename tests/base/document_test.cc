// Documents: text, markdown and JSON to trees over places in the source.
#include "strata/document.h"

#include <gtest/gtest.h>

namespace strata::test {
namespace {

// The tree in one line, leaves as they stand in the source: (..) is a sequence, {..} a set, <width: ..> a grid; an
// image leaf is row.column. An explicit stack, as trees may be deep.
std::string picture(const Document& document, const std::string& source) {
  const Tree& tree = document.tree;
  EXPECT_EQ(tree.tokens(), static_cast<int64_t>(document.leaves.size()));
  struct Step {
    bool node;
    int32_t child;
    std::string text;
  };
  std::string out;
  std::vector<Step> stack;
  if (tree.families() > 0) stack.push_back({true, ~0, ""});
  while (!stack.empty()) {
    const Step step = stack.back();
    stack.pop_back();
    if (!step.node) {
      out += step.text;
    } else if (step.child >= 0) {
      const Document::Leaf& leaf = document.leaves[step.child];
      out += leaf.image ? std::to_string(leaf.row) + "." + std::to_string(leaf.column)
                        : source.substr(leaf.begin, leaf.end - leaf.begin);
    } else {
      const int64_t f = ~step.child;
      const Domain domain = tree.domain(f);
      out += domain == Domain::kSet ? '{' : domain == Domain::kGrid ? '<' : '(';
      if (domain == Domain::kGrid) out += std::to_string(tree.width(f)) + ": ";
      stack.push_back({false, 0, domain == Domain::kSet ? "}" : domain == Domain::kGrid ? ">" : ")"});
      for (int32_t at = tree.child_begin()[f + 1] - 1; at >= tree.child_begin()[f]; --at) {
        stack.push_back({true, tree.children()[at], ""});
        if (at > tree.child_begin()[f]) stack.push_back({false, 0, " "});
      }
    }
  }
  return out;
}

std::string text_picture(const std::string& text, TextLeaf leaf = TextLeaf::kWord) {
  Document document;
  const Status status = document_from_text(text, leaf, &document);
  return status.ok() ? picture(document, text) : status.message();
}

std::string markdown_picture(const std::string& text) {
  Document document;
  const Status status = document_from_markdown(text, 2, 2, &document);
  return status.ok() ? picture(document, text) : status.message();
}

std::string json_picture(const std::string& text) {
  Document document;
  const Status status = document_from_json(text, 1, 2, &document);
  return status.ok() ? picture(document, text) : status.message();
}

// ------------------------------------------------------------------------------------------------- text

TEST(DocumentText, ParagraphsSentencesWords) {
  EXPECT_EQ(text_picture("One two. Three!\nFour\n\nFive"), "(((One two.) (Three!) (Four)) ((Five)))");
  EXPECT_EQ(text_picture("a\r\nb\r\n\r\nc"), "(((a b)) ((c)))");
  EXPECT_EQ(text_picture("a\rb\r \rc"), "(((a b)) ((c)))");
  EXPECT_EQ(text_picture("\n\n  a \n \t \n b\n\n"), "(((a)) ((b)))");
}

TEST(DocumentText, SentencesEndAtTerminatorsBeforeWhitespace) {
  EXPECT_EQ(text_picture("Is 3.5 ok? Yes... Well\u2026 No"), "(((Is 3.5 ok?) (Yes...) (Well\u2026) (No)))");
  EXPECT_EQ(text_picture("你好。 谢谢！ 吗？ 好"), "(((你好。) (谢谢！) (吗？) (好)))");
  EXPECT_EQ(text_picture("你好。谢谢"), "(((你好。谢谢)))");
  EXPECT_EQ(text_picture("a.b c"), "(((a.b c)))");
}

TEST(DocumentText, ClosingMarksStayWithTheirSentence) {
  EXPECT_EQ(text_picture("\"Go.\" (He went.) Then [x!]) y"), "(((\"Go.\") ((He went.)) (Then [x!])) (y)))");
  EXPECT_EQ(text_picture("« Allez ! » Puis"), "(((« Allez ! ») (Puis)))");
  EXPECT_EQ(text_picture("“Ja.” „Nein.“ Gut"), "(((“Ja.”) („Nein.“) (Gut)))");
  EXPECT_EQ(text_picture("a) b"), "(((a) b)))");
}

TEST(DocumentText, UnicodeWhitespaceSeparatesWords) {
  EXPECT_EQ(text_picture("a\u00A0b\u3000c\u2009d"), "(((a b c d)))");
  EXPECT_EQ(text_picture("\uFEFFa b"), "(((a b)))");
}

TEST(DocumentText, Characters) {
  EXPECT_EQ(text_picture("né. 漢字", TextLeaf::kCharacter), "((((n é .)) ((漢 字))))");
  Document document;
  ASSERT_TRUE(document_from_text("a \U0001F600b", TextLeaf::kCharacter, &document).ok());
  ASSERT_EQ(document.leaves.size(), 3u);
  EXPECT_EQ(document.leaves[1].begin, 2);
  EXPECT_EQ(document.leaves[1].end, 6);
  EXPECT_EQ(document.leaves[2].begin, 6);
  EXPECT_FALSE(document.leaves[1].image);
  for (int64_t f = 0; f < document.tree.families(); ++f) EXPECT_EQ(document.tree.domain(f), Domain::kSequence);
}

TEST(DocumentText, NothingGivesNoTokens) {
  for (const char* text : {"", " ", "\n\n\n", "\u3000", "\uFEFF"}) {
    Document document;
    ASSERT_TRUE(document_from_text(text, TextLeaf::kCharacter, &document).ok());
    EXPECT_EQ(document.tree.tokens(), 0);
    EXPECT_EQ(document.tree.families(), 0);
    EXPECT_TRUE(document.leaves.empty());
  }
}

TEST(DocumentText, RefusesBrokenUtf8) {
  const std::string code_point = "text: expected UTF-8, got a code point of ";
  EXPECT_EQ(text_picture("ab\x80"), "text: expected UTF-8, got 0x80 at byte 2, which starts no code point");
  EXPECT_EQ(text_picture("\xFF"), "text: expected UTF-8, got 0xFF at byte 0, which starts no code point");
  EXPECT_EQ(text_picture("a\xE6\xBC"), code_point + "3 bytes at byte 1 cut short by the end of the text");
  EXPECT_EQ(text_picture("a\xE6\xBC b"), code_point + "3 bytes at byte 1 cut short by 0x20 at byte 3");
  EXPECT_EQ(text_picture("\xC0\xAF"), code_point + "2 bytes at byte 0 that is longer than necessary");
  EXPECT_EQ(text_picture("\xE0\x80\xAF"), code_point + "3 bytes at byte 0 that is longer than necessary");
  EXPECT_EQ(text_picture("\xF0\x80\x80\xAF"), code_point + "4 bytes at byte 0 that is longer than necessary");
  EXPECT_EQ(text_picture("x\xED\xA0\x80"), code_point + "3 bytes at byte 1 that is half of a surrogate pair");
  EXPECT_EQ(text_picture("\xF4\x90\x80\x80"), code_point + "4 bytes at byte 0 that is beyond U+10FFFF");
  EXPECT_EQ(text_picture("\xF4\x8F\xBF\xBF"), "(((\xF4\x8F\xBF\xBF)))");
  EXPECT_EQ(markdown_picture("# a\n\xFF"), "markdown: expected UTF-8, got 0xFF at byte 4, which starts no code point");
  EXPECT_EQ(json_picture("\"\xFF\""), "json: expected UTF-8, got 0xFF at byte 1, which starts no code point");
}

TEST(DocumentText, ARefusalLeavesTheResultAlone) {
  Document document;
  ASSERT_TRUE(document_from_text("a b", TextLeaf::kWord, &document).ok());
  EXPECT_FALSE(document_from_text("\xFF", TextLeaf::kWord, &document).ok());
  EXPECT_FALSE(document_from_json("[1, 2, 3", 1, 1, &document).ok());
  EXPECT_EQ(document.tree.tokens(), 2);
  EXPECT_EQ(document.leaves.size(), 2u);
}

TEST(Document, RefusesNullAndEmptyPatches) {
  EXPECT_EQ(document_from_text("a", TextLeaf::kWord, nullptr).message(),
            "document: expected a place for the result, got null");
  EXPECT_FALSE(document_from_markdown("a", 1, 1, nullptr).ok());
  EXPECT_FALSE(document_from_json("1", 1, 1, nullptr).ok());
  Document document;
  EXPECT_EQ(document_from_markdown("a", 0, 1, &document).message(), "patch_rows: expected 1 or more, got 0");
  EXPECT_EQ(document_from_json("1", 1, -3, &document).message(), "patch_columns: expected 1 or more, got -3");
  EXPECT_EQ(document_from_markdown("a ![b](c)", 1 << 20, 1 << 20, &document).message(),
            "image at byte 2: expected at most 2^30 leaves in total, got 1099511627776 more after 1");
}

// ------------------------------------------------------------------------------------------------- markdown

TEST(DocumentMarkdown, HeadingsNestSections) {
  EXPECT_EQ(markdown_picture("intro\n# A\n## B\ntext\n## C ##\n# D\n"), "(((intro)) ((A) ((B) ((text))) ((C))) ((D)))");
  EXPECT_EQ(markdown_picture("### deep\n# top\n#tag\n####### seven"), "(((deep)) ((top) ((#tag ####### seven))))");
  EXPECT_EQ(markdown_picture("#\n\na"), "((((a))))");
}

TEST(DocumentMarkdown, ParagraphsHoldSentences) {
  EXPECT_EQ(markdown_picture("One two. Three\nfour.\n\nFive"), "(((One two.) (Three four.)) ((Five)))");
  EXPECT_EQ(markdown_picture("a\r\nb\r\n\r\nc"), "(((a b)) ((c)))");
}

TEST(DocumentMarkdown, ConsecutiveItemsFormOneList) {
  EXPECT_EQ(markdown_picture("text\n- a b\n* c\n  more\n+ d. e\n\n12. f\n\nafter\n1. g"),
            "(((text)) (((a b)) ((c more)) ((d.) (e)) ((f))) ((after)) (((g))))");
  EXPECT_EQ(markdown_picture("**bold** x\n-y\n1.5 z"), "(((**bold** x -y 1.5 z)))");
  EXPECT_EQ(markdown_picture("-\n- a\n# H\n- b"), "((((a))) ((H) (((b)))))");
}

TEST(DocumentMarkdown, CodeBlocksHoldLines) {
  EXPECT_EQ(markdown_picture("a\n```cpp\nint x = 1;\n\n# no heading\n```\nb"),
            "(((a)) ((int x = 1;) (# no heading)) ((b)))");
  EXPECT_EQ(markdown_picture("````\n```\nx\n`````"), "(((```) (x)))");
  EXPECT_EQ(markdown_picture("```a``` b"), "(((```a``` b)))");
  EXPECT_EQ(markdown_picture("```\n```"), "");
}

TEST(DocumentMarkdown, ImagesAreGrids) {
  const std::string grid = "<2: 0.0 0.1 1.0 1.1>";
  EXPECT_EQ(markdown_picture("a\n\n![a cat. Yes](cat.png)\n\nb"), "(((a)) " + grid + " ((b)))");
  EXPECT_EQ(markdown_picture("See ![x](y), ok. ![x](y) end"), "(((See " + grid + " , ok.) (" + grid + " end)))");
  EXPECT_EQ(markdown_picture("end.![](u) on"), "(((end. " + grid + " on)))");
  EXPECT_EQ(markdown_picture("- ![x](y)\n- b"), "((" + grid + " ((b))))");
  EXPECT_EQ(markdown_picture("# T ![x](y)"), "(((T " + grid + ")))");
  EXPECT_EQ(markdown_picture("![a [b](c) ![d](e ![f] !"), "(((![a [b](c) ![d](e ![f] !)))");
}

TEST(DocumentMarkdown, ImageLeavesCarryTheirPlace) {
  Document document;
  ASSERT_TRUE(document_from_markdown("a ![b](c)", 2, 3, &document).ok());
  ASSERT_EQ(document.leaves.size(), 7u);
  EXPECT_FALSE(document.leaves[0].image);
  for (int i = 0; i < 6; ++i) {
    const Document::Leaf& leaf = document.leaves[1 + i];
    EXPECT_TRUE(leaf.image);
    EXPECT_EQ(leaf.begin, 2);
    EXPECT_EQ(leaf.end, 9);
    EXPECT_EQ(leaf.row, i / 3);
    EXPECT_EQ(leaf.column, i % 3);
  }
  EXPECT_EQ(document.tree.domain(document.tree.families() - 1), Domain::kGrid);
  EXPECT_EQ(document.tree.width(document.tree.families() - 1), 3);
}

TEST(DocumentMarkdown, RefusesAnOpenFence) {
  EXPECT_EQ(markdown_picture("ab\n  ````\nx\n```\n"),
            "markdown: expected ```` to close the code block opened at byte 5, got the end of the text");
  EXPECT_FALSE(markdown_picture("```").empty());
}

TEST(DocumentMarkdown, LongInputStaysLinear) {
  std::string broken, glued;
  for (int i = 0; i < 300000; ++i) broken += "![a](";
  for (int i = 0; i < 100000; ++i) glued += "x![a](b)";
  Document document;
  ASSERT_TRUE(document_from_markdown(broken, 1, 1, &document).ok());
  EXPECT_EQ(document.tree.tokens(), 1);
  ASSERT_TRUE(document_from_markdown(glued, 1, 1, &document).ok());
  EXPECT_EQ(document.tree.tokens(), 200000);
}

// ------------------------------------------------------------------------------------------------- JSON

TEST(DocumentJson, ValuesNest) {
  EXPECT_EQ(json_picture(" [1, -2.5e+3, true, false, null, \"two words\"] "),
            "(1 -2.5e+3 true false null (two words))");
  EXPECT_EQ(json_picture("{\"a key\": [1], \"b\": {\"c\": 0}}"), "{(a key (1)) (b {(c 0)})}");
  EXPECT_EQ(json_picture("12"), "(12)");
  EXPECT_EQ(json_picture("null"), "(null)");
  EXPECT_EQ(json_picture("\"x y\""), "(x y)");
}

TEST(DocumentJson, EscapesStayRaw) {
  EXPECT_EQ(json_picture(R"("a\"b\\ c\nd \u00e9\/\b\f\r\t")"), R"((a\"b\\ c\nd \u00e9\/\b\f\r\t))");
}

TEST(DocumentJson, EmptyThingsLeaveNoNode) {
  for (const char* text : {"[]", "{}", "\"\"", "\"  \"", "[[], {}, \"\", [[{}]]]", "{\"\": []}"})
    EXPECT_EQ(json_picture(text), "");
  EXPECT_EQ(json_picture("[[], 1, {}, [\"\"], {\"\": 2, \"k\": []}]"), "(1 {(2) (k)})");
}

TEST(DocumentJson, Images) {
  EXPECT_EQ(json_picture("{\"image\": \"a b.png\"}"), "<2: 0.0 0.1>");
  EXPECT_EQ(json_picture("[{ \"image\" : \"\" }, 1]"), "(<2: 0.0 0.1> 1)");
  EXPECT_EQ(json_picture("{\"image\": \"x\", \"alt\": \"y\"}"), "{(image (x)) (alt (y))}");
  EXPECT_EQ(json_picture("{\"image\": 1}"), "{(image 1)}");
  EXPECT_EQ(json_picture("{\"images\": \"x\"}"), "{(images (x))}");
  Document document;
  ASSERT_TRUE(document_from_json("[1, {\"image\":\"u\"}]", 1, 1, &document).ok());
  ASSERT_EQ(document.leaves.size(), 2u);
  EXPECT_TRUE(document.leaves[1].image);
  EXPECT_EQ(document.leaves[1].begin, 4);
  EXPECT_EQ(document.leaves[1].end, 17);
}

TEST(DocumentJson, DepthIsBoundedByMemoryAlone) {
  const int depth = 1000000;
  Document document;
  const std::string arrays = std::string(depth, '[') + "1" + std::string(depth, ']');
  ASSERT_TRUE(document_from_json(arrays, 1, 1, &document).ok());
  EXPECT_EQ(document.tree.depth(), depth);
  EXPECT_EQ(document.tree.tokens(), 1);
  ASSERT_TRUE(document_from_json(std::string(depth, '[') + std::string(depth, ']'), 1, 1, &document).ok());
  EXPECT_EQ(document.tree.tokens(), 0);
  EXPECT_EQ(
      document_from_json(std::string(depth, '['), 1, 1, &document).message(),
      "json: expected a value (an object, array, string, number, true, false or null) at byte 1000000, got the end of "
      "the text");
}

TEST(DocumentJson, RefusalsNameThePlace) {
  const std::string value = "json: expected a value (an object, array, string, number, true, false or null) at byte ";
  const std::pair<std::string, std::string> cases[] = {
      {"", value + "0, got the end of the text"},
      {"[1,]", value + "3, got ']'"},
      {"[nul]", value + "1, got 'n'"},
      {"é", value + "0, got 'é'"},
      {std::string("\0", 1), value + "0, got the control character 0"},
      {"[1 2]", "json: expected ',' or ']' after an element at byte 3, got '2'"},
      {"[1}", "json: expected ',' or ']' after an element at byte 2, got '}'"},
      {"{\"a\":1", "json: expected ',' or '}' after a member at byte 6, got the end of the text"},
      {"{1}", "json: expected a key in quotes or '}' at byte 1, got '1'"},
      {"{\"a\":1,}", "json: expected a key in quotes at byte 7, got '}'"},
      {"{\"a\" 1}", "json: expected ':' after a key at byte 5, got '1'"},
      {"1 x", "json: expected the end of the text after the value at byte 2, got 'x'"},
      {"[\"ab", "json: expected '\"' to close the string opened at byte 1 at byte 4, got the end of the text"},
      {"\"a\nb\"",
       "json: expected an escape in place of a control character in a string at byte 2, got the control character 10"},
      {"\"\\x\"", "json: expected one of \" \\ / b f n r t u after a backslash at byte 2, got 'x'"},
      {"\"\\u12g4\"", "json: expected four hexadecimal digits after \\u at byte 5, got 'g'"},
      {"{\"image\": \"\\q\"}", "json: expected one of \" \\ / b f n r t u after a backslash at byte 12, got 'q'"},
      {"01", "json: expected no digit after a leading zero at byte 1, got '1'"},
      {"-", "json: expected a digit in a number at byte 1, got the end of the text"},
      {"1.x", "json: expected a digit in a number at byte 2, got 'x'"},
      {"1e+", "json: expected a digit in a number at byte 3, got the end of the text"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(json_picture(text), message);
}

}  // namespace
}  // namespace strata::test
