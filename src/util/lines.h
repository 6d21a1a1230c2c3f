// Lines of a text. Only "\n" and "\r\n" end a line (a review may hold a Unicode line separator).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace strata {

// Where a text begins, after a byte order mark if there is one.
inline size_t text_begin(std::string_view text) { return text.substr(0, 3) == "\xEF\xBB\xBF" ? 3 : 0; }

// Calls work(line, number) for every line that is not empty; numbers begin at 1.
template <class Work>
void for_each_line(const std::string& text, Work&& work) {
  int64_t number = 0;
  for (size_t at = text_begin(text); at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    std::string_view line(text.data() + at, end - at);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    ++number;
    if (!line.empty()) work(line, number);
    at = end + 1;
  }
}

}  // namespace strata
