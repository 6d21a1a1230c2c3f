// What any tokenizer that was read must do with any text.
#pragma once

#include "fuzz.h"
#include "tokenizer/tokenizer.h"

namespace strata::fuzz {

// Every token has an id of the vocabulary, and a place inside the text; places are in order.
inline void check_tokenizer(const Tokenizer& tokenizer, const std::string& text) {
  const Encoding whole = tokenizer.encode(text);
  require(whole.ids.size() == whole.places.size(), "a place for every token");
  for (const int32_t id : whole.ids) require(id >= 0 && id < tokenizer.size(), "ids below the size");
  int64_t last = 0;
  for (const TextRange& place : whole.places) {
    require(place.begin >= 0 && place.begin <= place.end && place.end <= static_cast<int64_t>(text.size()),
            "places inside the text");
    require(place.end >= last, "places in order");
    last = place.end;
  }
  constexpr int64_t kLength = 5;
  const Encoding cut = tokenizer.encode(text, /*special=*/true, kLength);
  require(static_cast<int64_t>(cut.ids.size()) <= std::max(kLength, tokenizer.special_count()), "a cut text is short");
  const Encoding plain = tokenizer.encode(text, /*special=*/false);
  require(plain.ids.size() + tokenizer.special_count() == whole.ids.size(), "special tokens around the text");
  tokenizer.decode(whole.ids);
}

}  // namespace strata::fuzz
