// Texts as words: how they are split, the vocabulary, rows, and the tree over them.
#include "data/words.h"

#include <gtest/gtest.h>

#include "data/support.h"
#include "data/task.h"
#include "data/trees.h"

namespace strata {
namespace {

using Words = std::vector<std::string>;

TEST(Words, SplitsAsPeopleRead) {
  EXPECT_EQ(split_words("Don't stop: it's 9.5/10!"),
            (Words{"don't", "stop", ":", "it's", "9", ".", "5", "/", "10", "!"}));
  EXPECT_EQ(split_words("One.<br /><br />Two\nthree"), (Words{"one", ".", "\n", "\n", "two", "\n", "three"}));
  EXPECT_EQ(split_words("caf\xc3\xa9 <br"), (Words{"caf\xc3\xa9", "<", "br"}));
  EXPECT_EQ(split_words(" \t\x01\x7f "), Words{});
}

Dataset rows_of(const Words& texts) {
  Dataset data;
  for (const std::string& text : texts) data.add_row(byte_tokens(text), 0, 1000);
  return data;
}

// The vocabulary goes into the header of a model, which is JSON. A row may be cut inside a character.
TEST(Words, TheVocabularyIsUtf8) {
  EXPECT_EQ(common_words(rows_of({"caf\xe9 a caf\xc3\xa9 b\xc3"}), 10), (Words{"a", "caf\xc3\xa9"}));
}

TEST(Words, TheVocabularyIsTheCommonestWordsInAFixedOrder) {
  const Dataset data = rows_of({"b a c", "a b a", "d"});
  EXPECT_EQ(common_words(data, 10), (Words{"a", "b", "c", "d"}));
  EXPECT_EQ(common_words(data, 2), (Words{"a", "b"}));
}

TEST(Words, RowsAreCutAsWordsAndUnknownOnesSaySo) {
  const Words words = {"a", "b"};
  const WordVocabulary vocabulary(words);
  const Dataset data = to_words(rows_of({"A, b zz", " ", "a a a a"}), vocabulary, 3);
  EXPECT_EQ(std::vector<Token>(data.row(0).begin(), data.row(0).end()), (std::vector<Token>{2, 1, 3}));
  EXPECT_EQ(std::vector<Token>(data.row(1).begin(), data.row(1).end()), std::vector<Token>{kUnknownWord});
  EXPECT_EQ(data.row(2).size(), 3u);
  EXPECT_EQ(data.cut, 2);
  EXPECT_EQ(show_tokens("imdb", std::vector<Token>{2, 1, 9}, words), (Words{"a ", "? ", "? "}));
  EXPECT_EQ(encode_input("imdb", "b a b b", 3, vocabulary), (std::vector<Token>{3, 2, 3}));
}

TEST(Words, TreesHaveParagraphsSentencesAndWords) {
  const Words words = {"a", ".", "\n", "caf\xc3\xa9"};
  const std::string text = "a a. caf\xc3\xa9 unknown.\na";
  const std::vector<Token> tokens = encode_input("imdb", text, 100, WordVocabulary(words));
  ASSERT_EQ(tokens.size(), 8u);
  const std::shared_ptr<const Tree> tree = TreeMaker("text", 16, words).tree(tokens);
  EXPECT_EQ(tree->tokens(), 8);
  // The root has two paragraphs; the first has the sentences "a a .", "café ? ." and the line break.
  const TreeView view = tree->view();
  EXPECT_EQ(view.child_begin[1] - view.child_begin[0], 2);
  EXPECT_EQ(view.child_begin[2] - view.child_begin[1], 3);
}

TEST(Words, TasksAreReadAsWords) {
  const TempFolder folder;
  const fs::path file = folder.write("t.csv",
                                     "label,text\ngood,a fine film\nbad,a bad film\ngood,fine\nbad,bad\ngood,a film\n"
                                     "bad,no\ngood,x\nbad,y\ngood,z\nbad,w\n");
  DataConfig config;
  config.task = "table";
  config.data = file.string();
  config.tokens = "words";
  config.words = 3;
  const TaskData data = load_task(config);
  EXPECT_EQ(data.words.size(), 3u);
  EXPECT_EQ(data.vocabulary, 5);
  EXPECT_EQ(data.length, 256);
  for (const Token token : data.train.tokens) EXPECT_LT(token, 5);
  EXPECT_EQ(load_task(config, {"film"}).vocabulary, 3);  // a model's own words
  config.task = "listops";
  config.data = "";
  EXPECT_EQ(error_of(ExitCode::kUsage, [&] { load_task(config); }),
            "tokens: only the texts of imdb and table can be read as words; use --tokens bytes for the task listops");
}

}  // namespace
}  // namespace strata
