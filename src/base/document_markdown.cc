// Markdown, line by line: only the constructs that carry nesting, and images.
#include "base/document_builder.h"
#include "base/text.h"
#include "strata/document.h"

namespace strata {
namespace {

class MarkdownReader {
 public:
  MarkdownReader(const std::string& text, DocumentBuilder* builder)
      : text_(text), size_(static_cast<int64_t>(text.size())), builder_(*builder) {}

  Status read();

 private:
  bool next_line();
  int64_t count(char c, int64_t at) const;  // how many times c stands at `at`, within the line
  bool blank_at(int64_t at) const { return at >= line_.end || text_[at] == ' ' || text_[at] == '\t'; }
  int64_t fence() const;        // backticks of the line if it opens a code block, else 0
  int64_t heading() const;      // level of the line if it is a heading, else 0
  int64_t item_marker() const;  // bytes of the list marker of the line, else 0
  int64_t image_end(int64_t at, int64_t end) const;

  Status read_code();
  Status read_heading();
  Status flush_block();
  Status inlines(Span span, bool sentences);
  void close_list() {
    if (in_list_) builder_.close();
    in_list_ = false;
  }

  const std::string& text_;
  const int64_t size_;
  DocumentBuilder& builder_;
  int64_t at_ = 0;                 // where the next line begins
  Span line_;                      // without its line end
  int64_t mark_ = 0;               // position of the line's first character that is not whitespace
  std::vector<int64_t> sections_;  // levels of the open sections
  bool in_list_ = false;
  bool in_block_ = false;
  Span block_;  // the paragraph or list item being gathered, when in_block_
};

bool MarkdownReader::next_line() {
  if (at_ >= size_) return false;
  const size_t end = text_.find_first_of("\r\n", at_);
  line_ = {at_, end == std::string::npos ? size_ : static_cast<int64_t>(end)};
  at_ = line_.end + 1;
  if (line_.end + 1 < size_ && text_[line_.end] == '\r' && text_[line_.end + 1] == '\n') ++at_;
  mark_ = skip_space(text_, line_.begin, line_.end);
  return true;
}

int64_t MarkdownReader::count(char c, int64_t at) const {
  int64_t n = 0;
  while (at + n < line_.end && text_[at + n] == c) ++n;
  return n;
}

int64_t MarkdownReader::fence() const {
  const int64_t ticks = count('`', mark_);
  if (ticks < 3) return 0;
  for (int64_t at = mark_ + ticks; at < line_.end; ++at) {
    if (text_[at] == '`') return 0;  // ```like this``` is code within a line
  }
  return ticks;
}

int64_t MarkdownReader::heading() const {
  const int64_t level = count('#', mark_);
  return level <= 6 && blank_at(mark_ + level) ? level : 0;
}

int64_t MarkdownReader::item_marker() const {
  const char c = mark_ < line_.end ? text_[mark_] : '\0';
  if (c == '-' || c == '*' || c == '+') return blank_at(mark_ + 1) ? 1 : 0;
  int64_t digits = 0;
  while (mark_ + digits < line_.end && text_[mark_ + digits] >= '0' && text_[mark_ + digits] <= '9') ++digits;
  const bool dot = digits > 0 && mark_ + digits < line_.end && text_[mark_ + digits] == '.';
  return dot && blank_at(mark_ + digits + 1) ? digits + 1 : 0;
}

// The end of ![alt](url) at `at`, or `at` if there is none. Both parts stop at the first bracket of their kind, opening
// or closing: a text of many broken images is still read in linear time.
int64_t MarkdownReader::image_end(int64_t at, int64_t end) const {
  if (at + 1 >= end || text_[at] != '!' || text_[at + 1] != '[') return at;
  const size_t alt = text_.find_first_of("[]", at + 2);
  if (alt == std::string::npos || static_cast<int64_t>(alt) + 1 >= end || text_[alt] != ']' || text_[alt + 1] != '(')
    return at;
  const size_t url = text_.find_first_of("()", alt + 2);
  if (url == std::string::npos || static_cast<int64_t>(url) >= end || text_[url] != ')') return at;
  return static_cast<int64_t>(url) + 1;
}

// Words and images of a span; with `sentences`, in families of their own.
Status MarkdownReader::inlines(Span span, bool sentences) {
  if (sentences) builder_.open(Domain::kSequence);
  bool over = false;  // the word before ends a sentence if whitespace follows
  for (int64_t gap = span.begin; gap < span.end;) {
    const int64_t begin = skip_space(text_, gap, span.end);
    if (begin == span.end) break;
    int64_t end = image_end(begin, span.end);
    const bool image = end > begin;
    while (!image && end < span.end) {  // a word goes on to whitespace or to an image
      const CodePoint c = decode(text_, end);
      if (is_space(c.value) || image_end(end, span.end) > end) break;
      end += c.size;
    }
    if (sentences && over && begin > gap && (image || !only_closing_marks(text_, {begin, end}))) {
      builder_.close();
      builder_.open(Domain::kSequence);
      over = false;
    }
    if (image) {
      if (Status status = builder_.image({begin, end}); !status.ok()) return status;
      over = false;
    } else {
      builder_.leaf({begin, end});
      over = ends_sentence(text_, {begin, end}) || (over && only_closing_marks(text_, {begin, end}));
    }
    gap = end;
  }
  if (sentences) builder_.close();
  return {};
}

// The gathered paragraph or list item, if any.
Status MarkdownReader::flush_block() {
  if (!in_block_) return {};
  in_block_ = false;
  const int64_t begin = skip_space(text_, block_.begin, block_.end), end = image_end(begin, block_.end);
  if (end > begin && skip_space(text_, end, block_.end) == block_.end) return builder_.image({begin, end});
  builder_.open(Domain::kSequence);
  Status status = inlines(block_, true);
  builder_.close();
  return status;
}

Status MarkdownReader::read_heading() {
  const int64_t level = heading();
  for (; !sections_.empty() && sections_.back() >= level; sections_.pop_back()) builder_.close();
  sections_.push_back(level);
  builder_.open(Domain::kSequence);  // the section
  // "## Title ##": the closing marks are not words of the title.
  int64_t end = line_.end;
  while (end > mark_ + level && (text_[end - 1] == ' ' || text_[end - 1] == '\t')) --end;
  int64_t marks = end;
  while (marks > mark_ + level && text_[marks - 1] == '#') --marks;
  if (marks == mark_ + level || text_[marks - 1] == ' ' || text_[marks - 1] == '\t') end = marks;
  builder_.open(Domain::kSequence);
  Status status = inlines({mark_ + level, end}, false);
  builder_.close();
  return status;
}

Status MarkdownReader::read_code() {
  const int64_t opening = mark_, ticks = fence();
  builder_.open(Domain::kSequence);
  while (next_line()) {
    const int64_t closing = count('`', mark_);
    if (closing >= ticks && skip_space(text_, mark_ + closing, line_.end) == line_.end) {
      builder_.close();
      return {};
    }
    builder_.open(Domain::kSequence);
    builder_.words(text_, line_);
    builder_.close();
  }
  return invalid("markdown: expected ", std::string(ticks, '`'), " to close the code block opened at byte ", opening,
                 ", got the end of the text");
}

Status MarkdownReader::read() {
  builder_.open(Domain::kSequence);
  at_ = after_byte_order_mark(text_);
  Status status;
  while (status.ok() && next_line()) {
    const bool blank = mark_ == line_.end;
    const int64_t marker = item_marker();
    if (in_block_ && !blank && marker == 0 && fence() == 0 && heading() == 0) {
      block_.end = line_.end;  // the block goes on
      continue;
    }
    status = flush_block();
    if (!status.ok() || blank) continue;
    if (marker == 0) close_list();  // blank lines alone do not end a list
    if (fence() > 0) {
      status = read_code();
    } else if (heading() > 0) {
      status = read_heading();
    } else {
      if (marker > 0 && !in_list_) builder_.open(Domain::kSequence);
      in_list_ = marker > 0;
      in_block_ = true;
      block_ = {mark_ + marker, line_.end};
    }
  }
  return status.ok() ? flush_block() : status;
}

}  // namespace

Status document_from_markdown(const std::string& text, int patch_rows, int patch_columns, Document* document) {
  if (document == nullptr) return invalid("document: expected a place for the result, got null");
  DocumentBuilder builder(patch_rows, patch_columns);
  if (Status status = builder.check_patches(); !status.ok()) return status;
  if (Status status = check_utf8(text, "markdown"); !status.ok()) return status;
  if (Status status = MarkdownReader(text, &builder).read(); !status.ok()) return status;
  return builder.finish(document);
}

}  // namespace strata
