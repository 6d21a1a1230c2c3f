// Texts as BERT reads them: cleaned, in lower case, without accents, split at whitespace and punctuation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace strata {

struct BertOptions {
  bool clean_text = true, chinese_characters = true, strip_accents = true, lower_case = true;
};

// One word: its normalised text, and for every character its end in that text and its source in the original.
struct BertWord {
  struct Character {
    int32_t end = 0;   // one past its last byte, in `text`
    TextRange source;  // in the original
  };
  std::string text;
  std::vector<Character> characters;
};

// Calls found(word) for every word of text[range], in order.
template <class Found>
void bert_words(std::string_view text, TextRange range, const BertOptions& options, const Found& found);

// ---- implementation

class BertWordMaker {
 public:
  explicit BertWordMaker(const BertOptions& options) : options_(options) {}
  // Takes one code point of the text; true when `word()` is now complete and must be taken before the next one.
  template <class Found>
  void add(int32_t code_point, TextRange source, const Found& found) {
    if (code_point < 0x80) {
      add_ascii(static_cast<char>(code_point), source, found);
    } else {
      normalised_.clear();
      normalise(code_point, normalised_);
      for (const int32_t c : normalised_) add_normalised(c, source, found);
    }
  }
  template <class Found>
  void finish(const Found& found) {
    if (word_.text.empty()) return;
    found(static_cast<const BertWord&>(word_));
    word_.text.clear();
    word_.characters.clear();
  }

 private:
  static constexpr int32_t kSpace = ' ';

  template <class Found>
  void add_ascii(char c, TextRange source, const Found& found) {
    const bool vertical = c == '\v' || c == '\f';  // control characters, although Unicode counts them as whitespace
    if (c == ' ' || (c >= '\t' && c <= '\r' && !(vertical && options_.clean_text))) return finish(found);
    if (options_.clean_text && (c < ' ' || c == 0x7f)) return;
    const bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    const bool capital = c >= 'A' && c <= 'Z';
    if (letter || capital || c < ' ' || c == 0x7f) {
      push(capital && options_.lower_case ? static_cast<char>(c + ('a' - 'A')) : c, source);
      return;
    }
    finish(found);  // punctuation is a word of its own
    push(c, source);
    finish(found);
  }
  template <class Found>
  void add_normalised(int32_t c, TextRange source, const Found& found) {
    if (c < 0x80) return add_ascii(static_cast<char>(c), source, found);
    if (is_white(c)) return finish(found);
    if (!is_punctuation(c)) return push_code_point(c, source);
    finish(found);
    push_code_point(c, source);
    finish(found);
  }
  void push(char c, TextRange source) {
    word_.text += c;
    word_.characters.push_back({static_cast<int32_t>(word_.text.size()), source});
  }
  void push_code_point(int32_t c, TextRange source);
  void normalise(int32_t code_point, std::vector<int32_t>& to) const;
  static bool is_white(int32_t c);
  static bool is_punctuation(int32_t c);

  BertOptions options_;
  BertWord word_;
  std::vector<int32_t> normalised_;
};

// The next code point of UTF-8 text, U+FFFD for invalid bytes; moves `at` past it.
int32_t next_code_point(std::string_view text, int64_t& at);

template <class Found>
void bert_words(std::string_view text, TextRange range, const BertOptions& options, const Found& found) {
  BertWordMaker maker(options);
  const std::string_view piece = text.substr(0, range.end);
  for (int64_t at = range.begin; at < range.end;) {
    const int64_t begin = at;
    const int32_t c = static_cast<uint8_t>(piece[at]) < 0x80 ? piece[at++] : next_code_point(piece, at);
    maker.add(c, {begin, at}, found);
  }
  maker.finish(found);
}

}  // namespace strata
