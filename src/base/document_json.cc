// JSON, read in one pass with a stack of its own for the nesting.
#include <cstring>

#include "base/document_builder.h"
#include "base/text.h"
#include "strata/document.h"

namespace strata {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class JsonReader {
 public:
  JsonReader(const std::string& text, DocumentBuilder* builder)
      : text_(text), size_(static_cast<int64_t>(text.size())), builder_(*builder) {}

  Status read();

 private:
  enum class Expect { kValue, kFirstElement, kKey, kFirstMember, kAfterValue };

  // 0 past the end. JSON has no place for a NUL character either, so callers need not distinguish the two.
  char peek() const { return at_ < size_ ? text_[at_] : '\0'; }
  bool take(char c) {
    if (at_ >= size_ || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
  }
  Status refuse(const std::string& expected) const;

  Status read_value();
  Status read_key();
  Status after_value(bool* done);
  Status read_string(Span* inside);
  Status read_number();
  Status read_image(bool* found);
  void open(char bracket);
  void close();
  void scalar(int64_t begin);

  const std::string& text_;
  const int64_t size_;
  DocumentBuilder& builder_;
  int64_t at_ = 0;
  std::string nesting_;  // the open brackets, '[' or '{', outermost first
  Expect expect_ = Expect::kValue;
};

Status JsonReader::refuse(const std::string& expected) const {
  if (at_ >= size_) return invalid("json: expected ", expected, " at byte ", at_, ", got the end of the text");
  const auto byte = static_cast<unsigned char>(text_[at_]);
  if (byte < 0x20 || byte == 0x7F) {
    return invalid("json: expected ", expected, " at byte ", at_, ", got the control character ",
                   static_cast<int>(byte));
  }
  return invalid("json: expected ", expected, " at byte ", at_, ", got '", text_.substr(at_, decode(text_, at_).size),
                 "'");
}

void JsonReader::open(char bracket) {
  ++at_;
  nesting_.push_back(bracket);
  builder_.open(bracket == '[' ? Domain::kSequence : Domain::kSet);
  expect_ = bracket == '[' ? Expect::kFirstElement : Expect::kFirstMember;
}

void JsonReader::close() {
  ++at_;
  nesting_.pop_back();
  builder_.close();
  expect_ = Expect::kAfterValue;
}

void JsonReader::scalar(int64_t begin) {
  if (nesting_.empty()) builder_.open(Domain::kSequence);  // the root is always a family
  builder_.leaf({begin, at_});
}

// Leaves at_ behind the closing quote; `inside` is what lies between the quotes.
Status JsonReader::read_string(Span* inside) {
  const int64_t opening = at_++;
  inside->begin = at_;
  while (true) {
    if (at_ >= size_) return refuse(text("'\"' to close the string opened at byte ", opening));
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte == '"') break;
    if (byte < 0x20) return refuse("an escape in place of a control character in a string");
    ++at_;
    if (byte != '\\') continue;
    if (take('u')) {
      for (int i = 0; i < 4; ++i, ++at_) {
        if (!is_hex(peek())) return refuse("four hexadecimal digits after \\u");
      }
    } else if (peek() != '\0' && std::strchr("\"\\/bfnrt", peek()) != nullptr) {
      ++at_;
    } else {
      return refuse("one of \" \\ / b f n r t u after a backslash");
    }
  }
  inside->end = at_++;
  return {};
}

Status JsonReader::read_number() {
  const int64_t begin = at_;
  const auto digits = [&] {
    if (!is_digit(peek())) return refuse("a digit in a number");
    while (is_digit(peek())) ++at_;
    return Status();
  };
  take('-');
  if (!take('0')) {
    if (Status status = digits(); !status.ok()) return status;
  } else if (is_digit(peek())) {
    return refuse("no digit after a leading zero");
  }
  if (take('.')) {
    if (Status status = digits(); !status.ok()) return status;
  }
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    if (Status status = digits(); !status.ok()) return status;
  }
  scalar(begin);
  return {};
}

// At '{': reads {"image": "..."}, or changes nothing. It reads at most one string ahead, so time stays linear.
Status JsonReader::read_image(bool* found) {
  const int64_t begin = at_++;
  *found = false;
  skip_blanks();
  if (text_.compare(at_, 7, "\"image\"") == 0) {
    at_ += 7;
    skip_blanks();
    if (take(':')) {
      skip_blanks();
      Span url;
      if (peek() == '"' && read_string(&url).ok()) {
        skip_blanks();
        *found = take('}');
      }
    }
  }
  if (*found) return builder_.image({begin, at_});
  at_ = begin;  // read it as an ordinary object, which also reports errors
  return {};
}

Status JsonReader::read_value() {
  expect_ = Expect::kAfterValue;
  const char c = peek();
  if (c == '{') {
    bool image = false;
    if (Status status = read_image(&image); !status.ok()) return status;
    if (!image) open(c);
    return {};
  }
  if (c == '[') {
    open(c);
    return {};
  }
  if (c == '"') {
    Span inside;
    if (Status status = read_string(&inside); !status.ok()) return status;
    builder_.open(Domain::kSequence);
    builder_.words(text_, inside);
    builder_.close();
    return {};
  }
  if (c == '-' || is_digit(c)) return read_number();
  for (const char* literal : {"true", "false", "null"}) {
    const auto length = static_cast<int64_t>(std::strlen(literal));
    if (text_.compare(at_, length, literal) == 0) {
      at_ += length;
      scalar(at_ - length);
      return {};
    }
  }
  return refuse("a value (an object, array, string, number, true, false or null)");
}

// A member stays open until its value is read.
Status JsonReader::read_key() {
  if (peek() != '"') return refuse(expect_ == Expect::kFirstMember ? "a key in quotes or '}'" : "a key in quotes");
  Span inside;
  if (Status status = read_string(&inside); !status.ok()) return status;
  builder_.open(Domain::kSequence);
  builder_.words(text_, inside);
  skip_blanks();
  if (!take(':')) return refuse("':' after a key");
  expect_ = Expect::kValue;
  return {};
}

Status JsonReader::after_value(bool* done) {
  if (nesting_.empty()) {
    if (at_ < size_) return refuse("the end of the text after the value");
    *done = true;
    return {};
  }
  const bool in_object = nesting_.back() == '{';
  if (in_object) builder_.close();
  if (take(',')) {
    expect_ = in_object ? Expect::kKey : Expect::kValue;
  } else if (peek() == (in_object ? '}' : ']')) {
    close();
  } else {
    return refuse(in_object ? "',' or '}' after a member" : "',' or ']' after an element");
  }
  return {};
}

Status JsonReader::read() {
  Status status;
  for (bool done = false; !done && status.ok();) {
    skip_blanks();
    const bool empty_array = expect_ == Expect::kFirstElement && peek() == ']';
    const bool empty_object = expect_ == Expect::kFirstMember && peek() == '}';
    if (empty_array || empty_object) {
      close();
    } else if (expect_ == Expect::kAfterValue) {
      status = after_value(&done);
    } else if (expect_ == Expect::kKey || expect_ == Expect::kFirstMember) {
      status = read_key();
    } else {
      status = read_value();
    }
  }
  return status;
}

}  // namespace

Status document_from_json(const std::string& text, int patch_rows, int patch_columns, Document* document) {
  if (document == nullptr) return invalid("document: expected a place for the result, got null");
  DocumentBuilder builder(patch_rows, patch_columns);
  if (Status status = builder.check_patches(); !status.ok()) return status;
  if (Status status = check_utf8(text, "json"); !status.ok()) return status;
  if (Status status = JsonReader(text, &builder).read(); !status.ok()) return status;
  return builder.finish(document);
}

}  // namespace strata
