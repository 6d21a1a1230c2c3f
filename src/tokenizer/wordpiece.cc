#include "tokenizer/wordpiece.h"

#include "util/error.h"
#include "util/text.h"

namespace strata {

WordPiece::WordPiece(std::vector<std::string> vocabulary, Options options)
    : options_(std::move(options)), vocabulary_(std::move(vocabulary)) {
  ids_.reserve(vocabulary_.size());
  for (size_t id = 0; id < vocabulary_.size(); ++id) ids_.emplace(vocabulary_[id], static_cast<int32_t>(id));
  const auto unknown = ids_.find(options_.unknown);
  if (unknown == ids_.end())
    throw data_error("tokenizer: expected the unknown token {} in the vocabulary, found none", shown(options_.unknown));
  unknown_ = unknown->second;
}

void WordPiece::add_word(const BertWord& word, Encoding& to, std::string& piece) const {
  const auto count = static_cast<int64_t>(word.characters.size());
  const size_t before = to.ids.size();
  auto end_of = [&](int64_t character) { return character == 0 ? 0 : word.characters[character - 1].end; };
  auto fail = [&] {
    to.ids.resize(before);
    to.places.resize(before);
    to.ids.push_back(unknown_);
    to.places.push_back({word.characters.front().source.begin, word.characters.back().source.end});
  };
  if (count > options_.longest_word) return fail();
  for (int64_t first = 0; first < count;) {
    piece = first == 0 ? "" : options_.continuation;
    const size_t prefix = piece.size();
    piece.append(word.text, end_of(first));
    int64_t last = count;
    auto found = ids_.end();
    for (; last > first; --last) {
      piece.resize(prefix + end_of(last) - end_of(first));
      found = ids_.find(piece);
      if (found != ids_.end()) break;
    }
    if (last == first) return fail();
    to.ids.push_back(found->second);
    to.places.push_back({word.characters[first].source.begin, word.characters[last - 1].source.end});
    first = last;
  }
}

void WordPiece::encode(std::string_view text, TextRange range, Encoding& to) const {
  std::string piece;
  bert_words(text, range, options_.text, [&](const BertWord& word) { add_word(word, to, piece); });
}

std::string WordPiece::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= size()) continue;
    const std::string_view token = vocabulary_[id];
    const bool goes_on = token.starts_with(options_.continuation);
    if (!text.empty() && !goes_on) text += ' ';
    text += goes_on ? token.substr(options_.continuation.size()) : token;
  }
  return text;
}

}  // namespace strata
