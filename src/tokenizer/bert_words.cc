#include "tokenizer/bert_words.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <stdexcept>

namespace strata {
namespace {

const icu::Normalizer2& decomposer() {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* const nfd = icu::Normalizer2::getNFDInstance(error);
  if (U_FAILURE(error)) throw std::runtime_error(std::string("ICU has no normalisation data: ") + u_errorName(error));
  return *nfd;
}

bool is_chinese(int32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

// The general category of a character, as in Unicode 8, which the reference implementation uses. Later characters have
// no category.
int category(int32_t c) {
  constexpr uint8_t kKnown = 8;
  switch (c) {  // characters whose category has changed since
    case 0x166D:
    case 0x111C9:
      return U_OTHER_PUNCTUATION;
    case 0x1734:
      return U_NON_SPACING_MARK;
    case 0x1885:
    case 0x1886:
      return U_OTHER_LETTER;
    case 0xA9BD:
      return U_COMBINING_SPACING_MARK;
    default:
      break;
  }
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] > kKnown ? static_cast<int>(U_UNASSIGNED) : u_charType(c);
}

bool is_control(int32_t c) {
  return (U_MASK(category(c)) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK | U_GC_CS_MASK)) != 0;
}

void lower(int32_t c, std::vector<int32_t>& to) {
  constexpr int32_t kDottedCapitalI = 0x130, kDotAbove = 0x307;
  if (c == kDottedCapitalI) {  // the only letter whose lower case has two code points
    to.push_back('i');
    to.push_back(kDotAbove);
  } else {
    to.push_back(u_tolower(c));
  }
}

}  // namespace

int32_t next_code_point(std::string_view text, int64_t& at) {
  constexpr int32_t kReplacement = 0xFFFD;
  const auto size = static_cast<int64_t>(text.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  UChar32 c = 0;
  U8_NEXT(bytes, at, size, c);
  return c < 0 ? kReplacement : c;
}

bool BertWordMaker::is_white(int32_t c) { return u_isUWhiteSpace(c) != 0; }
bool BertWordMaker::is_punctuation(int32_t c) { return (U_MASK(category(c)) & U_GC_P_MASK) != 0; }

void BertWordMaker::push_code_point(int32_t c, TextRange source) {
  char bytes[4];
  int32_t size = 0;
  U8_APPEND_UNSAFE(bytes, size, c);
  word_.text.append(bytes, static_cast<size_t>(size));
  word_.characters.push_back({static_cast<int32_t>(word_.text.size()), source});
}

void BertWordMaker::normalise(int32_t c, std::vector<int32_t>& to) const {
  constexpr int32_t kReplacement = 0xFFFD;
  if (options_.clean_text) {
    if (c == kReplacement || is_control(c)) return;
    if (is_white(c)) return to.push_back(kSpace);
  }
  const bool apart = options_.chinese_characters && is_chinese(c);
  if (apart) to.push_back(kSpace);
  std::vector<int32_t> parts;
  icu::UnicodeString decomposition;
  if (options_.strip_accents && decomposer().getDecomposition(c, decomposition)) {
    for (int32_t at = 0; at < decomposition.length(); at = decomposition.moveIndex32(at, 1))
      parts.push_back(decomposition.char32At(at));
  } else {
    parts.push_back(c);
  }
  for (const int32_t part : parts) {
    if (options_.strip_accents && category(part) == U_NON_SPACING_MARK) continue;
    if (options_.lower_case) {
      lower(part, to);
    } else {
      to.push_back(part);
    }
  }
  if (apart) to.push_back(kSpace);
}

}  // namespace strata
