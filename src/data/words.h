// Texts as words instead of bytes: a vocabulary of the most frequent words of the training rows.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/dataset.h"

namespace strata {

inline constexpr Token kUnknownWord = 1;  // word w of the vocabulary is token 2 + w
inline constexpr const char* kLineBreak = "\n";

// Letters, digits, apostrophes and bytes beyond ASCII make words, in lower case. Every other character that is not
// whitespace is a word of its own. Line breaks, also written as <br /> in web pages, are one word each.
std::vector<std::string> split_words(std::string_view text);

class WordVocabulary {
 public:
  explicit WordVocabulary(const std::vector<std::string>& words);
  std::vector<Token> operator()(std::string_view text) const;

 private:
  std::unordered_map<std::string, Token> tokens_;
};

// The most frequent words of rows of bytes, most frequent first; equally frequent words in alphabetical order.
std::vector<std::string> common_words(const Dataset& bytes, int64_t most);
using TextEncoder = std::function<std::vector<Token>(std::string_view text)>;
// Rows of bytes as rows of words, cut at `length`; rows without any word become one unknown word.
Dataset to_words(const Dataset& bytes, const TextEncoder& encode, int64_t length);

// Empty for a token that is no word.
std::string_view word_of(const std::vector<std::string>& words, Token token);
// A token in readable form: the word and a space.
std::string show_word(const std::vector<std::string>& words, Token token);

}  // namespace strata
