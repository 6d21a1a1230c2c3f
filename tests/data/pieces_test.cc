// Texts as word pieces: the tokenizer's tokens, the trees over them, and what does not go together.
#include "data/pieces.h"

#include <gtest/gtest.h>

#include "data/support.h"
#include "data/task.h"
#include "data/trees.h"
#include "tokenizer/tokenizer.h"

namespace strata {
namespace {

constexpr const char* kVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nfilm\nplay\n##ing\n##s\nbad\n.\n!\n<\nbr\n/\n>\n)\n";
constexpr const char* kText = "A film. Playing films<br /><br />bad plays! A zebra [MASK]) film";

struct Folder : TempFolder {
  Folder() {
    write("encoder/vocab.txt", kVocabulary);
    std::string rows = "label,text\n";
    for (int i = 0; i < 20; ++i) rows += std::string(i % 2 == 0 ? "good" : "bad") + "," + kText + "\n";
    write("t.csv", rows);
  }
  std::string encoder() const { return (path() / "encoder").string(); }
  DataConfig config() const {
    DataConfig config;
    config.task = "table";
    config.data = (path() / "t.csv").string();
    config.tokens = "pieces";
    config.embeddings = encoder();
    return config;
  }
};

std::vector<Token> shifted(const std::vector<int32_t>& ids) {
  std::vector<Token> tokens;
  for (const int32_t id : ids) tokens.push_back(static_cast<Token>(id + 2));
  return tokens;
}

TEST(Pieces, TokensAreTheTokenizersOwn) {
  const Folder folder;
  const std::vector<Token> expected = shifted(Tokenizer::load(folder.encoder()).encode(kText, false).ids);
  DataConfig config = folder.config();
  const TaskData data = load_task(config);
  EXPECT_EQ(data.words.size(), 18u);
  EXPECT_EQ(data.vocabulary, 20);
  ASSERT_GT(data.train.size(), 0);
  for (int64_t row = 0; row < data.train.size(); ++row)
    EXPECT_EQ(std::vector<Token>(data.train.row(row).begin(), data.train.row(row).end()), expected);
  EXPECT_EQ(encode_input("table", kText, 100, text_encoder(data.words, data.pieces)), expected);
  EXPECT_EQ(show_tokens("table", std::span(expected).first(5), data.words),
            (std::vector<std::string>{"a ", "film ", ". ", "play ", "##ing "}));
  config.length = 4;
  const TaskData cut = load_task(config);
  EXPECT_EQ(cut.train.row(0).size(), 4u);
  EXPECT_EQ(cut.train.cut, cut.train.size());
}

// The files decide the tokens, so a record has them. A model's own tokenizer needs no folder.
TEST(Pieces, TheFolderIsReadOnceAndRecorded) {
  const Folder folder;
  DataConfig config = folder.config();
  const TaskData data = load_task(config);
  EXPECT_EQ(data.files, (std::vector<fs::path>{folder.path() / "t.csv", folder.path() / "encoder/vocab.txt"}));
  fs::remove_all(folder.encoder());
  config.pieces = data.pieces;
  const TaskData again = load_task(config, data.words);
  EXPECT_EQ(again.train.tokens, data.train.tokens);
  EXPECT_EQ(again.files.size(), 1u);
}

void draw(const Tree& tree, int32_t node, const std::vector<std::string>& leaves, std::string& out) {
  if (node >= 0) {
    out += leaves[node];
    return;
  }
  out += '(';
  for (int32_t at = tree.child_begin()[~node]; at < tree.child_begin()[~node + 1]; ++at)
    draw(tree, tree.children()[at], leaves, out);
  out += ')';
}

TEST(Pieces, TreesHaveParagraphsSentencesWordsAndPieces) {
  const Folder folder;
  const TaskData data = load_task(folder.config());
  const std::vector<Token> tokens = encode_input("table", kText, 100, text_encoder(data.words, data.pieces));
  const std::shared_ptr<const Tree> tree = TreeMaker("text", 16, data.words).tree(tokens);
  std::string drawn;
  draw(*tree, -1, show_tokens("table", tokens, data.words), drawn);
  EXPECT_EQ(drawn,
            "(((a film . )((play ##ing )(film ##s )< br / > ))(< br / > )"
            "((bad (play ##s )! )(a [UNK] [MASK] ) film )))");
  // Every beginning of a row is a row; so is a lone continuation.
  for (size_t length = 1; length <= tokens.size(); ++length) {
    for (const int64_t branching : {2, 16}) {
      TreeMaker maker("text", branching, data.words);
      EXPECT_EQ(maker.tree(std::span(tokens).first(length))->tokens(), static_cast<int64_t>(length));
      EXPECT_EQ(maker.tree(std::span(tokens).last(length))->tokens(), static_cast<int64_t>(length));
    }
  }
}

// Words of a model file are anything.
TEST(Pieces, TreesCoverPiecesThatNoTextHas) {
  const std::vector<std::string> words = {"two words", "", " ", "\n", "##", "## x", "##.", "\xff"};
  std::vector<Token> tokens;
  for (Token token = 0; token < 12; ++token) tokens.insert(tokens.end(), {token, 8, token});
  EXPECT_EQ(TreeMaker("text", 4, words).tree(tokens)->tokens(), static_cast<int64_t>(tokens.size()));
}

TEST(Pieces, WhatDoesNotGoTogetherIsNamed) {
  const Folder folder;
  auto refuse = [&](ExitCode code, const char* part, const std::function<void(DataConfig&)>& change) {
    DataConfig config = folder.config();
    change(config);
    EXPECT_SAYS(error_of(code, [&] { load_task(config); }), part);
  };
  refuse(ExitCode::kUsage, "pass it with --embeddings", [](DataConfig& c) { c.embeddings.clear(); });
  refuse(ExitCode::kUsage, "expected --tokens pieces beside --embeddings, got --tokens words",
         [](DataConfig& c) { c.tokens = "words"; });
  refuse(ExitCode::kUsage, "only the texts of imdb and table can be read as pieces",
         [](DataConfig& c) { c.task = "text"; });
  refuse(ExitCode::kData, "found no folder", [](DataConfig& c) { c.embeddings += "x"; });
  fs::remove(folder.path() / "encoder/vocab.txt");
  refuse(ExitCode::kData, "expected tokenizer.json, or vocab.txt", [](DataConfig&) {});
  std::string many = kVocabulary;
  for (int i = 0; i < kMostPieces; ++i) many += "w" + std::to_string(i) + "\n";
  folder.write("encoder/vocab.txt", many);
  refuse(ExitCode::kData, "expected a tokenizer of at most 65534 tokens, got 65552", [](DataConfig&) {});
}

}  // namespace
}  // namespace strata
