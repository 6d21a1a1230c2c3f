#include "strata/document.h"

#include <algorithm>
#include <cstdio>

#include "base/document_builder.h"
#include "base/text.h"

namespace strata {
namespace {

// Trees count tokens and families together in 32 bits: at most 2^30 of each.
constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr int64_t kMaxLeaves = int64_t{1} << 30;

std::string hex(unsigned char byte) {
  char digits[8];
  std::snprintf(digits, sizeof digits, "0x%02X", byte);
  return digits;
}

bool is_terminator(uint32_t c) {
  return c == '.' || c == '!' || c == '?' || c == 0x2026 || c == 0x3002 || c == 0xFF01 || c == 0xFF1F;
}

// Quotes and brackets that close; " and ' close as well as open.
bool is_closing(uint32_t c) {
  static constexpr uint32_t kClosing[] = {'"',    '\'',   ')',    ']',    '}',    0xBB,   0x2019, 0x201C,
                                          0x201D, 0x203A, 0x3009, 0x300B, 0x300D, 0x300F, 0x3011, 0xFF09};
  return std::find(std::begin(kClosing), std::end(kClosing), c) != std::end(kClosing);
}

}  // namespace

Status check_utf8(const std::string& text, const char* name) {
  const auto size = static_cast<int64_t>(text.size());
  if (size > kMaxBytes) return invalid(name, ": expected at most 2^30 bytes, got ", size);
  for (int64_t at = 0; at < size;) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const int64_t length = byte < 0x80 ? 1 : byte < 0xC0 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF8 ? 4 : 0;
    if (length == 0) {
      return invalid(name, ": expected UTF-8, got ", hex(byte), " at byte ", at, ", which starts no code point");
    }
    for (int64_t i = 1; i < length; ++i) {
      if (at + i >= size) {
        return invalid(name, ": expected UTF-8, got a code point of ", length, " bytes at byte ", at,
                       " cut short by the end of the text");
      }
      if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) {
        return invalid(name, ": expected UTF-8, got a code point of ", length, " bytes at byte ", at, " cut short by ",
                       hex(static_cast<unsigned char>(text[at + i])), " at byte ", at + i);
      }
    }
    const uint32_t value = decode(text, at).value;
    static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    const char* reason = value < kLeast[length]               ? "longer than necessary"
                         : value >= 0xD800 && value <= 0xDFFF ? "half of a surrogate pair"
                         : value > 0x10FFFF                   ? "beyond U+10FFFF"
                                                              : nullptr;
    if (reason != nullptr) {
      return invalid(name, ": expected UTF-8, got a code point of ", length, " bytes at byte ", at, " that is ",
                     reason);
    }
    at += length;
  }
  return {};
}

CodePoint decode(const std::string& text, int64_t at) {
  const auto byte = [&](int64_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const auto next = [&](int64_t i) { return byte(i) & 0x3F; };
  if (byte(0) < 0x80) return {byte(0), 1};
  if (byte(0) < 0xE0) return {(byte(0) & 0x1F) << 6 | next(1), 2};
  if (byte(0) < 0xF0) return {(byte(0) & 0x0F) << 12 | next(1) << 6 | next(2), 3};
  return {(byte(0) & 0x07) << 18 | next(1) << 12 | next(2) << 6 | next(3), 4};
}

bool is_space(uint32_t c) {  // Unicode's White_Space
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

int64_t skip_space(const std::string& text, int64_t at, int64_t end) {
  while (at < end) {
    const CodePoint c = decode(text, at);
    if (!is_space(c.value)) break;
    at += c.size;
  }
  return std::min(at, end);
}

int64_t word_end(const std::string& text, int64_t at, int64_t end) {
  while (at < end) {
    const CodePoint c = decode(text, at);
    if (is_space(c.value)) break;
    at += c.size;
  }
  return std::min(at, end);
}

bool ends_sentence(const std::string& text, Span word) {
  bool ends = false;
  for (int64_t at = word.begin; at < word.end;) {
    const CodePoint c = decode(text, at);
    ends = is_terminator(c.value) || (ends && is_closing(c.value));
    at += c.size;
  }
  return ends;
}

bool only_closing_marks(const std::string& text, Span word) {
  for (int64_t at = word.begin; at < word.end;) {
    const CodePoint c = decode(text, at);
    if (!is_closing(c.value) || c.value == '"' || c.value == '\'' || c.value == 0x201C) return false;
    at += c.size;
  }
  return true;
}

int64_t after_byte_order_mark(const std::string& text) { return text.compare(0, 3, "\xEF\xBB\xBF") == 0 ? 3 : 0; }

// ------------------------------------------------------------------------------------------------- builder

Status DocumentBuilder::check_patches() const {
  if (rows_ < 1) return invalid("patch_rows: expected 1 or more, got ", rows_);
  if (columns_ < 1) return invalid("patch_columns: expected 1 or more, got ", columns_);
  return {};
}

void DocumentBuilder::close() {
  open_.pop_back();
  made_ = std::min(made_, open_.size());
}

void DocumentBuilder::leaf(const Document::Leaf& leaf) {
  for (; made_ < open_.size(); ++made_) {
    const int32_t parent = made_ == 0 ? -1 : open_[made_ - 1].family;
    open_[made_].family = loose_.add_family(open_[made_].domain, parent);
    loose_.families.back().width = open_[made_].width;
  }
  loose_.add_token(open_.back().family);
  leaves_.push_back(leaf);
}

void DocumentBuilder::words(const std::string& text, Span span) {
  for (int64_t at = skip_space(text, span.begin, span.end); at < span.end;) {
    const int64_t end = word_end(text, at, span.end);
    leaf({at, end});
    at = skip_space(text, end, span.end);
  }
}

Status DocumentBuilder::image(Span markup) {
  // Every word takes at least one byte of the text, so only images can exceed the limit.
  const int64_t patches = static_cast<int64_t>(rows_) * columns_;
  if (patches > kMaxLeaves - static_cast<int64_t>(leaves_.size())) {
    return invalid("image at byte ", markup.begin, ": expected at most 2^30 leaves in total, got ", patches,
                   " more after ", leaves_.size());
  }
  open(Domain::kGrid, columns_);
  for (int32_t row = 0; row < rows_; ++row) {
    for (int32_t column = 0; column < columns_; ++column) leaf({markup.begin, markup.end, true, row, column});
  }
  close();
  return {};
}

Status DocumentBuilder::finish(Document* document) {
  Document made;
  Status status = loose_.finish(&made.tree);
  if (!status.ok()) return status;
  made.leaves = std::move(leaves_);
  *document = std::move(made);
  return {};
}

// ------------------------------------------------------------------------------------------------- text

namespace {

// Whether whitespace holds a blank line: two line ends, where "\r\n" counts as one.
bool has_blank_line(const std::string& text, Span space) {
  int lines = 0;
  for (int64_t at = space.begin; at < space.end; ++at) {
    lines += text[at] == '\n' || (text[at] == '\r' && (at + 1 == space.end || text[at + 1] != '\n'));
  }
  return lines >= 2;
}

}  // namespace

Status document_from_text(const std::string& text, TextLeaf leaf, Document* document) {
  if (document == nullptr) return invalid("document: expected a place for the result, got null");
  Status status = check_utf8(text, "text");
  if (!status.ok()) return status;

  DocumentBuilder builder(1, 1);
  for (int level = 0; level < 3; ++level) builder.open(Domain::kSequence);  // document, paragraph, sentence
  const auto size = static_cast<int64_t>(text.size());
  bool sentence_over = false;
  int64_t next_byte = 0;  // with kByte: the first byte that is not a leaf yet
  for (int64_t gap = after_byte_order_mark(text); gap < size;) {
    const int64_t at = skip_space(text, gap, size);
    const int64_t end = word_end(text, at, size);
    if (at == end) break;
    const bool new_paragraph = has_blank_line(text, {gap, at});
    if (new_paragraph || (sentence_over && !only_closing_marks(text, {at, end}))) {
      const int levels = new_paragraph ? 2 : 1;
      for (int level = 0; level < levels; ++level) builder.close();
      for (int level = 0; level < levels; ++level) builder.open(Domain::kSequence);
      sentence_over = false;
    }
    if (leaf == TextLeaf::kWord) {
      builder.leaf({at, end});
    } else {
      const bool bytes = leaf == TextLeaf::kByte;
      const int64_t last = bytes && skip_space(text, end, size) == size ? size : end;
      builder.open(Domain::kSequence);
      for (int64_t c = bytes ? next_byte : at; c < last;) {
        const int64_t next = c + (bytes ? 1 : decode(text, c).size);
        builder.leaf({c, next});
        c = next;
      }
      builder.close();
      next_byte = last;
    }
    sentence_over = ends_sentence(text, {at, end}) || (sentence_over && only_closing_marks(text, {at, end}));
    gap = end;
  }
  if (leaf == TextLeaf::kByte && next_byte == 0) {  // nothing but whitespace
    for (int64_t c = 0; c < size; ++c) builder.leaf({c, c + 1});
  }
  return builder.finish(document);
}

}  // namespace strata
