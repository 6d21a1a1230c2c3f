#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <array>

namespace strata {
namespace {

bool is_white(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

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
    int64_t from = at, to = at + static_cast<int64_t>(found->text.size());
    while (found->takes_space_before && from > begin && is_white(text[from - 1])) --from;
    while (found->takes_space_behind && to < size && is_white(text[to])) ++to;
    model_->encode(text, {begin, from}, encoding);
    encoding.ids.push_back(found->id);
    encoding.places.push_back({at, at + static_cast<int64_t>(found->text.size())});
    begin = at = to;
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
  std::vector<int32_t> plain;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(plain), [&](int32_t id) { return !is_special(id); });
  return model_->decode(plain);
}

bool Tokenizer::is_special(int32_t id) const {
  return std::any_of(special_.begin(), special_.end(), [&](const SpecialToken& token) { return token.id == id; });
}

int32_t Tokenizer::special_id(std::string_view text) const {
  const auto at = std::find_if(special_.begin(), special_.end(), [&](const SpecialToken& t) { return t.text == text; });
  return at == special_.end() ? -1 : at->id;
}

}  // namespace strata
