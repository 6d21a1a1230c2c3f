#include "util/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace strata {
namespace {

// The length of the UTF-8 character at the start of `text`; 0 if there is none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (first == 0xe0 && byte(1) < 0xa0) return 0;   // longer than it needs to be
  if (first == 0xed && byte(1) >= 0xa0) return 0;  // half of a surrogate pair
  if (first == 0xf0 && byte(1) < 0x90) return 0;   // longer than it needs to be
  if (first == 0xf4 && byte(1) >= 0x90) return 0;  // beyond U+10FFFF
  return length;
}

// The same; 0 also for control characters.
size_t printable_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x20 || first == 0x7f) return 0;
  const size_t length = character_length(text);
  if (length == 2 && first == 0xc2 && byte(1) < 0xa0) return 0;  // U+0080 to U+009F, which terminals obey
  const bool turns = length == 3 && first == 0xe2 &&
                     ((byte(1) == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae) ||
                      (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9));
  return turns ? 0 : length;  // characters that change the direction of the text after them
}

std::string escaped(std::string_view text, bool keep_lines) {
  std::string result;
  while (!text.empty()) {
    const size_t length = keep_lines && text[0] == '\n' ? 1 : printable_length(text);
    if (length > 0) {
      result += text.substr(0, length);
    } else {
      result += text[0] == '\n'   ? "\\n"
                : text[0] == '\t' ? "\\t"
                                  : fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t length = 0; !text.empty(); text.remove_prefix(length)) {
    length = character_length(text);
    if (length == 0) return false;
  }
  return true;
}

std::string shown(std::string_view text, size_t most) {
  if (text.size() <= most) return escaped(text, false);
  return fmt::format("{}... ({} characters)", escaped(text.substr(0, most / 2), false), text.size());
}

std::string shown_list(const std::vector<std::string>& texts, size_t most) {
  std::string list;
  for (size_t i = 0; i < std::min(texts.size(), most); ++i) list += (i == 0 ? "" : ", ") + shown(texts[i]);
  return texts.size() <= most ? list : fmt::format("{} and {} others", list, texts.size() - most);
}

std::string shown_message(std::string_view message) {
  constexpr size_t kMost = 4000;
  if (message.size() <= kMost) return escaped(message, true);
  return fmt::format("{}... ({} characters)", escaped(message.substr(0, kMost), true), message.size());
}

}  // namespace strata
