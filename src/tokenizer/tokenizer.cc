#include "tokenizer/tokenizer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>

#include "tokenizer/bert_words.h"

namespace strata {
namespace {

// Where the white space that ends at `end` begins, at `first` at the earliest.
int64_t white_begin(std::string_view text, int64_t first, int64_t end) {
  while (end > first) {
    int64_t begin = end - 1;  // of the last character
    while (begin > first && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    int64_t behind = begin;
    if (!u_isUWhiteSpace(next_code_point(text, behind)) || behind != end) break;
    end = begin;
  }
  return end;
}

// Where the white space that begins at `begin` ends.
int64_t white_end(std::string_view text, int64_t begin) {
  for (int64_t behind = begin; behind < static_cast<int64_t>(text.size()); begin = behind) {
    if (!u_isUWhiteSpace(next_code_point(text, behind))) break;
  }
  return begin;
}

}  // namespace

Encoding Tokenizer::encode(std::string_view text, bool special, int64_t length) const {
  Encoding encoding;
  std::array<bool, 256> starts{};
  for (const SpecialToken& token : special_) starts[static_cast<uint8_t>(token.text[0])] = true;

  const auto size = static_cast<int64_t>(text.size());
  int64_t begin = 0;  // of the current part of the text without special tokens
  for (int64_t at = 0; at < size;) {
    const SpecialToken* found = nullptr;  // the longest that starts here
    if (starts[static_cast<uint8_t>(text[at])]) {
      for (const SpecialToken& token : special_) {
        if (text.substr(at, token.text.size()) == token.text &&
            (found == nullptr || token.text.size() > found->text.size()))
          found = &token;
      }
    }
    if (found == nullptr) {
      ++at;
      continue;
    }
    const int64_t end = at + static_cast<int64_t>(found->text.size());
    model_->encode(text, {begin, found->takes_space_before ? white_begin(text, begin, at) : at}, encoding);
    encoding.ids.push_back(found->id);
    encoding.places.push_back({at, end});
    begin = at = found->takes_space_behind ? white_end(text, end) : end;
  }
  model_->encode(text, {begin, size}, encoding);

  const int64_t around = special ? special_count() : 0;
  if (length > 0 && static_cast<int64_t>(encoding.ids.size()) + around > length) {
    const auto kept = static_cast<size_t>(std::max<int64_t>(0, length - around));
    encoding.ids.resize(kept);
    encoding.places.resize(kept);
  }
  if (special) {
    encoding.ids.insert(encoding.ids.begin(), before_.begin(), before_.end());
    encoding.places.insert(encoding.places.begin(), before_.size(), {0, 0});
    encoding.ids.insert(encoding.ids.end(), after_.begin(), after_.end());
    encoding.places.insert(encoding.places.end(), after_.size(), {size, size});
  }
  return encoding;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  std::vector<int32_t> plain;
  for (const int32_t id : ids) {
    const SpecialToken* const added = find_added(id);
    if (added == nullptr) plain.push_back(id);
    if (added == nullptr || !added->is_text) continue;
    text += model_->decode(plain) + added->text;
    plain.clear();
  }
  return text + model_->decode(plain);
}

const SpecialToken* Tokenizer::find_added(int32_t id) const {
  const auto at =
      std::find_if(special_.begin(), special_.end(), [&](const SpecialToken& token) { return token.id == id; });
  return at == special_.end() ? nullptr : &*at;
}

bool Tokenizer::is_special(int32_t id) const {
  const SpecialToken* const added = find_added(id);
  return added != nullptr && !added->is_text;
}

int32_t Tokenizer::special_id(std::string_view text) const {
  const auto at = std::find_if(special_.begin(), special_.end(), [&](const SpecialToken& t) { return t.text == text; });
  return at == special_.end() ? -1 : at->id;
}

}  // namespace strata
