#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/bert_words.h"

namespace strata {

inline constexpr const char* kTokenCount = "tokens";  // in the model of a recipe (WordPieces)

// The longest known beginning of a word, then the longest known continuation ("##ing") of the rest, and so on. A word
// that cannot be split completely is one unknown token.
class WordPiece : public TokenModel {
 public:
  struct Options {
    BertOptions text;
    std::string unknown = "[UNK]", continuation = kContinuation;
    int64_t longest_word = 100;  // characters; longer ones are unknown
  };
  // vocabulary[id] is the token; throws Error (kData) if the unknown token is not in it.
  WordPiece(std::vector<std::string> vocabulary, Options options);

  void encode(std::string_view text, TextRange range, Encoding& to) const override;
  std::string decode(const std::vector<int32_t>& ids) const override;
  int64_t size() const override { return static_cast<int64_t>(vocabulary_.size()); }

  const std::vector<std::string>& vocabulary() const { return vocabulary_; }
  const Options& options() const { return options_; }

 private:
  void add_word(const BertWord& word, Encoding& to, std::string& piece) const;

  Options options_;
  std::vector<std::string> vocabulary_;
  std::unordered_map<std::string_view, int32_t> ids_;  // of the strings in vocabulary_
  int32_t unknown_ = 0;
};

}  // namespace strata
