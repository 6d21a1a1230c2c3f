// What the builders of documents share: checked UTF-8, words, and a tree that grows by opening and closing families.
#pragma once

#include "base/loose_tree.h"
#include "strata/document.h"

namespace strata {

struct CodePoint {
  uint32_t value = 0;
  int64_t size = 0;  // in bytes
};

// Rejects broken UTF-8 and texts too long for 32-bit trees. `name` begins the message: "text", "markdown", "json".
Status check_utf8(const std::string& text, const char* name);

// The code point at byte `at` of a text that passed check_utf8.
CodePoint decode(const std::string& text, int64_t at);
bool is_space(uint32_t code_point);

// The first code point at or after `at` that is not whitespace; `end` if there is none.
int64_t skip_space(const std::string& text, int64_t at, int64_t end);
// The end of the word that begins at `at`.
int64_t word_end(const std::string& text, int64_t at, int64_t end);

bool ends_sentence(const std::string& text, Span word);       // . ! ? … 。 ！ ？, then closing quotes and brackets
bool only_closing_marks(const std::string& text, Span word);  // a separate » continues the sentence, as in French

// Where the text begins after a byte order mark.
int64_t after_byte_order_mark(const std::string& text);

// A family is added to the tree with its first leaf, so empty families never reach it.
class DocumentBuilder {
 public:
  DocumentBuilder(int patch_rows, int patch_columns) : rows_(patch_rows), columns_(patch_columns) {}
  Status check_patches() const;

  void open(Domain domain, int32_t width = 0) { open_.push_back({domain, width, -1}); }
  void close();
  void leaf(const Document::Leaf& leaf);
  void words(const std::string& text, Span span);  // one leaf per word, in the open family
  Status image(Span markup);                       // a grid of patches

  Status finish(Document* document);

 private:
  struct Open {
    Domain domain;
    int32_t width;
    int32_t family;  // in loose_; -1 until there is a leaf
  };
  int rows_, columns_;
  LooseTree loose_;
  std::vector<Document::Leaf> leaves_;
  std::vector<Open> open_;
  size_t made_ = 0;  // the first made_ open families have their place in loose_
};

}  // namespace strata
