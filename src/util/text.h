// Text that others wrote.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace strata {

bool is_utf8(std::string_view text);

// `text` for a terminal: control characters and bytes that are not UTF-8 become \xHH. A text of more than `most` bytes
// is cut, and its length is told.
std::string shown(std::string_view text, size_t most = 40);
// Several texts with commas between them; after the first few comes the number of the others.
std::string shown_list(const std::vector<std::string>& texts, size_t most = 20);
// A whole message or warning: line ends stay.
std::string shown_message(std::string_view message);

}  // namespace strata
