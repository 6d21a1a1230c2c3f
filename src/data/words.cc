#include "data/words.h"

#include <algorithm>

#include "util/text.h"

namespace strata {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '\'' ||
         static_cast<uint8_t>(c) >= 0x80;
}

std::string text_of(std::span<const Token> bytes) {
  std::string text;
  for (const Token token : bytes) text += static_cast<char>(token - 1);
  return text;
}

}  // namespace

std::vector<std::string> split_words(std::string_view text) {
  constexpr std::string_view kBreak = "<br />";
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at, kBreak.size()) == kBreak) {
      words.emplace_back(kLineBreak);
      at += kBreak.size();
    } else if (is_letter(text[at])) {
      std::string word;
      for (; at < text.size() && is_letter(text[at]); ++at)
        word += text[at] >= 'A' && text[at] <= 'Z' ? static_cast<char>(text[at] - 'A' + 'a') : text[at];
      words.push_back(std::move(word));
    } else {
      const char c = text[at++];
      if (c == '\n') {
        words.emplace_back(kLineBreak);
      } else if (c > ' ' && c != 0x7f) {
        words.emplace_back(1, c);
      }
    }
  }
  return words;
}

WordVocabulary::WordVocabulary(const std::vector<std::string>& words) {
  for (size_t w = 0; w < words.size(); ++w) tokens_.emplace(words[w], static_cast<Token>(kUnknownWord + 1 + w));
}

std::vector<Token> WordVocabulary::operator()(std::string_view text) const {
  std::vector<Token> tokens;
  for (const std::string& word : split_words(text)) {
    const auto found = tokens_.find(word);
    tokens.push_back(found == tokens_.end() ? kUnknownWord : found->second);
  }
  return tokens;
}

std::vector<std::string> common_words(const Dataset& bytes, int64_t most) {
  std::unordered_map<std::string, int64_t> counts;
  for (int64_t row = 0; row < bytes.size(); ++row) {
    for (std::string& word : split_words(text_of(bytes.row(row)))) {
      if (is_utf8(word)) ++counts[std::move(word)];  // others, such as one that was cut, are unknown words
    }
  }
  std::vector<std::pair<std::string, int64_t>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  std::vector<std::string> words;
  for (const auto& [word, count] : sorted) {
    if (static_cast<int64_t>(words.size()) == most) break;
    words.push_back(word);
  }
  return words;
}

Dataset to_words(const Dataset& bytes, const TextEncoder& encode, int64_t length) {
  Dataset data;
  data.bad = bytes.bad;
  data.problems = bytes.problems;
  for (int64_t row = 0; row < bytes.size(); ++row) {
    std::vector<Token> tokens = encode(text_of(bytes.row(row)));
    if (tokens.empty()) tokens.push_back(kUnknownWord);
    data.add_row(tokens, bytes.rows[row].label, length);
  }
  return data;
}

std::string_view word_of(const std::vector<std::string>& words, Token token) {
  if (token <= kUnknownWord || token - kUnknownWord > static_cast<int64_t>(words.size())) return {};
  return words[token - kUnknownWord - 1];
}

std::string show_word(const std::vector<std::string>& words, Token token) {
  const std::string word(word_of(words, token));
  return word.empty() ? "? " : word == kLineBreak ? word : word + " ";
}

}  // namespace strata
