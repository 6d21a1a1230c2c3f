#include "tokenizer/word_pattern.h"

#include <unicode/uchar.h>

#include "tokenizer/bert_words.h"

namespace strata {
namespace {

constexpr std::string_view kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

enum class Kind { kLetter, kNumber, kWhite, kOther };

Kind kind_of(int32_t c) {
  if (c < 0x80) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return Kind::kLetter;
    if (c >= '0' && c <= '9') return Kind::kNumber;
    return c == ' ' || (c >= '\t' && c <= '\r') ? Kind::kWhite : Kind::kOther;
  }
  if (u_isUWhiteSpace(c)) return Kind::kWhite;
  const uint32_t category = U_MASK(u_charType(c));
  return (category & U_GC_L_MASK) != 0 ? Kind::kLetter : (category & U_GC_N_MASK) != 0 ? Kind::kNumber : Kind::kOther;
}

Kind kind_at(std::string_view text, int64_t& at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte >= 0x80) return kind_of(next_code_point(text, at));
  ++at;
  return kind_of(byte);
}

// The end of the characters of one kind from `at` on, `most` of them.
int64_t run_end(std::string_view text, int64_t at, Kind kind, int64_t most = INT64_MAX) {
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t count = 0; at < size && count < most; ++count) {
    int64_t behind = at;
    if (kind_at(text, behind) != kind) break;
    at = behind;
  }
  return at;
}

bool is_line_break(char c) { return c == '\r' || c == '\n'; }

// \s+(?!\S)|\s+: the last whitespace character before a word belongs to the word, unless it is the only one.
int64_t white_word_end(std::string_view text, int64_t at) {
  const auto size = static_cast<int64_t>(text.size());
  int64_t end = at, last = at;  // last: where the last character so far starts
  while (end < size) {
    int64_t behind = end;
    if (kind_at(text, behind) != Kind::kWhite) return last > at ? last : end;
    last = end;
    end = behind;
  }
  return size;
}

int64_t gpt2_word_end(std::string_view text, int64_t at) {
  if (text[at] == '\'') {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (text.substr(at, ending.size()) == ending) return at + static_cast<int64_t>(ending.size());
    }
  }
  int64_t next = at;
  Kind kind = kind_at(text, next);
  if (text[at] == ' ' && next < static_cast<int64_t>(text.size())) {  // a space belongs to the word that follows it
    int64_t behind = next;
    kind = kind_at(text, behind);
  }
  return kind == Kind::kWhite ? white_word_end(text, at) : run_end(text, next, kind);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d); a long s is an s as well. Returns `at` where there is none.
int64_t contraction_end(std::string_view text, int64_t at) {
  if (text[at] != '\'') return at;
  auto lower = [&](int64_t i) {
    const char c = i < static_cast<int64_t>(text.size()) ? text[i] : '\0';
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = lower(at + 1), second = lower(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return at + 3;
  constexpr std::string_view kLongS = "\u017f";
  return text.substr(at + 1, kLongS.size()) == kLongS ? at + 1 + static_cast<int64_t>(kLongS.size()) : at;
}

// The alternatives of the pattern in their order; `digits`: of a number at most.
int64_t llama_word_end(std::string_view text, int64_t at, int64_t digits) {
  const auto size = static_cast<int64_t>(text.size());
  if (const int64_t end = contraction_end(text, at); end > at) return end;
  int64_t next = at;
  const Kind kind = kind_at(text, next);
  if (kind == Kind::kLetter) return run_end(text, next, Kind::kLetter);
  if (kind == Kind::kNumber) return run_end(text, at, Kind::kNumber, digits);
  // [^\r\n\p{L}\p{N}]?\p{L}+: any one character in front of letters
  if (!is_line_break(text[at])) {
    if (const int64_t end = run_end(text, next, Kind::kLetter); end > next) return end;
  }
  //  ?[^\s\p{L}\p{N}]+[\r\n]*
  const int64_t marks = text[at] == ' ' ? next : at;
  if (int64_t end = run_end(text, marks, Kind::kOther); end > marks) {
    while (end < size && is_line_break(text[end])) ++end;
    return end;
  }
  // \s*[\r\n]+: up to the last line break of the white space
  const int64_t white = run_end(text, at, Kind::kWhite);
  for (int64_t end = white; end > at; --end) {
    if (is_line_break(text[end - 1])) return end;
  }
  return white_word_end(text, at);
}

}  // namespace

bool find_word_pattern(std::string_view expression, WordPattern& pattern) {
  if (expression == kGpt2Expression) {
    pattern = WordPattern::kGpt2;
  } else if (expression == kLlama3Expression) {
    pattern = WordPattern::kLlama3;
  } else if (expression == kQwen2Expression) {
    pattern = WordPattern::kQwen2;
  } else {
    return false;
  }
  return true;
}

int64_t word_end(std::string_view text, int64_t at, WordPattern pattern) {
  constexpr int64_t kLlamaDigits = 3;
  switch (pattern) {
    case WordPattern::kLlama3:
      return llama_word_end(text, at, kLlamaDigits);
    case WordPattern::kQwen2:
      return llama_word_end(text, at, 1);
    default:
      return gpt2_word_end(text, at);
  }
}

}  // namespace strata
