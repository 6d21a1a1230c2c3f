#pragma once

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/word_pattern.h"

namespace strata {

// Byte-level byte-pair encoding: the text is split into words by a pattern. Starting from the bytes of a word, the pair
// that was merged first in training is merged, repeatedly.
class ByteBpe : public TokenModel {
 public:
  struct Options {
    bool space_in_front = false;  // a text that does not start with a space is read as if it did
    bool trim_places = false;     // the place of a word excludes the space in front of it,
    bool keep_first = false;      // but for a single one of the first word
    bool whole_words = false;     // a word of the vocabulary is one token, whatever the merges say
    bool compose = false;         // texts are read in NFC
    WordPattern pattern = WordPattern::kGpt2;
  };
  // vocabulary[id] is the token and merges the pairs in order, both in the alphabet in which every byte is a letter
  // (a space is "Ġ"). Throws Error (kData) if they do not fit together.
  ByteBpe(std::vector<std::string> vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
          Options options);

  void encode(std::string_view text, TextRange range, Encoding& to) const override;
  std::string decode(const std::vector<int32_t>& ids) const override;
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }

 private:
  struct Merge {
    int32_t rank = 0, id = 0;
  };
  void encode_words(std::string_view text, TextRange range, Encoding& to) const;
  std::vector<int32_t> symbols_of(std::string_view word) const;
  void add_word(std::string_view text, std::string_view word, int64_t begin, bool borrowed_space, Encoding& to) const;
  void merge_all(std::vector<int32_t>& symbols) const;
  const Merge* find(int32_t left, int32_t right) const;

  Options options_;
  std::vector<std::string> bytes_;  // of each token
  std::array<int32_t, 256> letters_{};
  std::unordered_map<uint64_t, Merge> merges_;
  std::unordered_map<std::string, int32_t> words_;  // the vocabulary, for whole_words
};

}  // namespace strata
