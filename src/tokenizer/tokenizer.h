// Texts as the tokens of pretrained transformers: WordPiece (BERT, MiniLM) and byte-level BPE (GPT-2, RoBERTa, Llama 3,
// Qwen2), exactly the tokens of the reference implementations, with the place of every token in the text.
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
  std::vector<TextRange> places;  // of each token in the text; empty ranges for special tokens around it
};

// Turns text without special tokens into tokens.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Adds the tokens of text[range]. Any bytes are accepted; invalid UTF-8 is read as U+FFFD.
  virtual void encode(std::string_view text, TextRange range, Encoding& to) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  virtual int64_t size() const = 0;  // all ids are below
};

struct SpecialToken {
  std::string text;
  int32_t id = 0;
  bool takes_space_before = false, takes_space_behind = false;
  bool is_text = false;  // an added token that is no special one: decoded as it is written
};

inline constexpr const char* kContinuation = "##";  // BERT's tokens that continue a word begin with it

// A WordPiece tokenizer in two parts that a model file can hold.
struct WordPieces {
  std::vector<std::string> tokens;  // by id
  std::string recipe;               // all else: a tokenizer.json without the vocabulary
};

class Tokenizer {
 public:
  // From a Hugging Face folder: tokenizer.json, or vocab.txt, or vocab.json and merges.txt. Throws Error (kData) that
  // says what was expected.
  static Tokenizer load(const std::filesystem::path& folder);
  // From the text of a tokenizer.json; `where` is for messages.
  static Tokenizer from_json(const std::string& text, const std::string& where);

  // The same tokens as the tokenizer that the parts come from, but none around a text. Throws Error (kData).
  static Tokenizer from_word_pieces(const WordPieces& pieces, const std::string& where);
  // Throws Error (kData) for a tokenizer of another kind.
  WordPieces word_pieces(const std::string& where) const;

  // With special tokens around it if `special`, and at most `length` tokens in total (0: no limit). A text that is too
  // long loses its end, not the special tokens.
  Encoding encode(std::string_view text, bool special = true, int64_t length = 0) const;
  // Special tokens are skipped; other added tokens are written.
  std::string decode(const std::vector<int32_t>& ids) const;

  int64_t size() const { return size_; }
  bool is_special(int32_t id) const;                // added tokens that are text are not
  int32_t special_id(std::string_view text) const;  // of the special token written like this; -1 if there is none
  int64_t special_count() const { return static_cast<int64_t>(before_.size() + after_.size()); }

 private:
  friend struct TokenizerReader;
  std::unique_ptr<TokenModel> model_;
  const SpecialToken* find_added(int32_t id) const;
  std::vector<SpecialToken> special_;    // recognised in texts
  std::vector<int32_t> before_, after_;  // added before and after a text
  int64_t size_ = 0;
};

}  // namespace strata
