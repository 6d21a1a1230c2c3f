// Texts as the tokens of pretrained transformers: WordPiece (BERT, MiniLM) and byte-level BPE (GPT-2, RoBERTa), token
// for token as the reference implementations have them, with the place of every token in the text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

struct TextRange {
  int64_t begin = 0, end = 0;  // bytes
  bool operator==(const TextRange&) const = default;
};

struct Encoding {
  std::vector<int32_t> ids;
  std::vector<TextRange> places;  // of each token in the text; empty ranges for tokens that stand for no text
};

// How pieces of text that hold no special token become tokens.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Adds the tokens of text[range]. Any bytes are taken; what is no UTF-8 is read as U+FFFD.
  virtual void encode(std::string_view text, TextRange range, Encoding& to) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  virtual int64_t size() const = 0;  // ids are below
};

struct SpecialToken {
  std::string text;
  int32_t id = 0;
  bool takes_space_before = false, takes_space_behind = false;
};

class Tokenizer {
 public:
  // From a Hugging Face folder: tokenizer.json, or vocab.txt, or vocab.json and merges.txt. Throws Error (kData) that
  // says what was expected.
  static Tokenizer load(const std::filesystem::path& folder);
  // From the text of a tokenizer.json; `where` is for messages.
  static Tokenizer from_json(const std::string& text, const std::string& where);

  // With special tokens around it if asked, and at most `length` tokens in all (0: any number): the end of the text is
  // cut off, not the special tokens.
  Encoding encode(std::string_view text, bool special = true, int64_t length = 0) const;
  // Without special tokens, which stand for no text.
  std::string decode(const std::vector<int32_t>& ids) const;

  int64_t size() const { return size_; }
  bool is_special(int32_t id) const;
  int32_t special_id(std::string_view text) const;  // of the special token of this text; -1: there is none
  int64_t special_count() const { return static_cast<int64_t>(before_.size() + after_.size()); }

 private:
  friend struct TokenizerReader;
  std::unique_ptr<TokenModel> model_;
  std::vector<SpecialToken> special_;    // found in texts as they are
  std::vector<int32_t> before_, after_;  // that a sequence starts and ends with
  int64_t size_ = 0;
};

}  // namespace strata
