#include "generate/text_out.h"

#include <algorithm>
#include <string>

namespace strata {
namespace {

// The number of bytes of the first character; 0 if it is not UTF-8 (table 3-7 of Unicode).
size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char least = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (byte < least || byte > most) return 0;
  }
  return length;
}

// The text with U+FFFD in place of every byte that belongs to no character.
std::string readable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = character_length(text);
    result += length > 0 ? text.substr(0, length) : "\xef\xbf\xbd";
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

// The number of bytes at the end that may begin a character.
size_t unfinished(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte >= 0xc0) {  // the first byte of a character of 2, 3 or 4
      const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return back < length ? back : 0;
    }
  }
  return 0;
}

}  // namespace

void TextOut::write(size_t bytes) {
  if (bytes == 0) return;
  const std::string piece = readable(std::string_view(held_).substr(0, bytes));
  write_(piece);
  text_ += piece;
  held_.erase(0, bytes);
}

bool TextOut::add(std::string_view bytes) {
  held_ += bytes;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!stop.empty()) first = std::min(first, held_.find(stop));
  }
  if (first != std::string::npos) {
    write(first);
    held_.clear();
    return false;
  }
  size_t keep = unfinished(held_);
  for (const std::string& stop : stops_) {  // the longest end of the text that may begin a stop text
    for (size_t length = std::min(stop.size(), held_.size()); length > keep; --length) {
      if (stop.compare(0, length, held_, held_.size() - length, length) == 0) keep = length;
    }
  }
  write(held_.size() - keep);
  return true;
}

void TextOut::finish() { write(held_.size()); }

}  // namespace strata
