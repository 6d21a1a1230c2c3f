#include "tokenizer/compose.h"

#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <stdexcept>

#include "tokenizer/bert_words.h"

namespace strata {
namespace {

const icu::Normalizer2& composer() {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* const nfc = icu::Normalizer2::getNFCInstance(error);
  if (U_FAILURE(error)) throw std::runtime_error(std::string("ICU has no normalisation data: ") + u_errorName(error));
  return *nfc;
}

// The characters of one part of a text that no other part changes.
struct Segment {
  icu::UnicodeString characters;
  bool valid = true;  // UTF-8
  TextRange place;
};

void append(std::string_view text, const Segment& segment, ComposedText& to) {
  UErrorCode error = U_ZERO_ERROR;
  std::string bytes;
  if (segment.valid && !composer().isNormalized(segment.characters, error) && U_SUCCESS(error))
    composer().normalize(segment.characters, error).toUTF8String(bytes);
  if (bytes.empty() || U_FAILURE(error)) {  // every byte from itself
    for (int64_t at = segment.place.begin; at < segment.place.end; ++at) {
      to.text += text[at];
      to.sources.push_back({at, at + 1});
    }
    return;
  }
  to.text += bytes;
  to.sources.insert(to.sources.end(), bytes.size(), segment.place);
}

}  // namespace

bool may_compose(std::string_view text, TextRange range) {
  constexpr uint8_t kFirst = 0xCC;  // characters below U+0300 are composed, and compose with none of each other
  return std::any_of(text.begin() + range.begin, text.begin() + range.end,
                     [](char c) { return static_cast<uint8_t>(c) >= kFirst; });
}

ComposedText compose(std::string_view text, TextRange range) {
  constexpr int32_t kReplacement = 0xFFFD;
  ComposedText composed;
  const std::string_view piece = text.substr(0, range.end);
  Segment segment;
  segment.place = {range.begin, range.begin};
  for (int64_t at = range.begin; at < range.end;) {
    const int64_t begin = at;
    const int32_t c = next_code_point(piece, at);
    if (begin > segment.place.begin && composer().hasBoundaryBefore(c)) {
      append(piece, segment, composed);
      segment = Segment{{}, true, {begin, begin}};
    }
    segment.characters.append(static_cast<UChar32>(c));
    segment.valid = segment.valid && (c != kReplacement || piece.substr(begin, at - begin) == "\ufffd");
    segment.place.end = at;
  }
  if (segment.place.end > segment.place.begin) append(piece, segment, composed);
  return composed;
}

}  // namespace strata
