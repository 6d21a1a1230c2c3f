// Normalisation of texts to composed characters (NFC), with the place of every byte in the text before.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace strata {

struct ComposedText {
  std::string text;
  std::vector<TextRange> sources;  // of each byte: the characters that it comes from
};

// Whether text[range] may change; false is certain.
bool may_compose(std::string_view text, TextRange range);
// text[range] in NFC. Bytes that are no UTF-8 stay as they are.
ComposedText compose(std::string_view text, TextRange range);

}  // namespace strata
