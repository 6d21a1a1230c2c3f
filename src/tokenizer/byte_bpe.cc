#include "tokenizer/byte_bpe.h"

#include <algorithm>
#include <queue>

#include "tokenizer/bert_words.h"
#include "tokenizer/compose.h"
#include "util/error.h"
#include "util/text.h"

namespace strata {
namespace {

// The letter that represents each byte: itself if it is printable, otherwise one from U+0100 on.
const std::vector<std::string>& byte_letters() {
  static const std::vector<std::string> letters = [] {
    std::vector<std::string> result(256);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool shown = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const int c = shown ? byte : next++;
      if (c < 0x80) {
        result[byte] = static_cast<char>(c);
      } else {
        result[byte] = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
      }
    }
    return result;
  }();
  return letters;
}

// The bytes that a token represents; letters outside this alphabet are kept unchanged.
std::string bytes_of(const std::string& token) {
  static const std::unordered_map<std::string, char> known = [] {
    std::unordered_map<std::string, char> result;
    for (int byte = 0; byte < 256; ++byte) result[byte_letters()[byte]] = static_cast<char>(byte);
    return result;
  }();
  std::string bytes;
  for (int64_t at = 0; at < static_cast<int64_t>(token.size());) {
    const int64_t begin = at;
    next_code_point(token, at);
    const std::string letter = token.substr(begin, at - begin);
    const auto found = known.find(letter);
    bytes += found == known.end() ? letter : std::string(1, found->second);
  }
  return bytes;
}

// A token that is a part of a character has the range of the whole character.
TextRange whole_characters(std::string_view text, TextRange range) {
  auto inside = [&](int64_t at) {
    return at > 0 && at < static_cast<int64_t>(text.size()) && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80;
  };
  while (inside(range.begin)) --range.begin;
  while (inside(range.end)) ++range.end;
  return range;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

ByteBpe::ByteBpe(std::vector<std::string> vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
                 Options options)
    : options_(options) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < vocabulary.size(); ++id) ids.emplace(vocabulary[id], static_cast<int32_t>(id));
  auto id_of = [&](const std::string& token, const char* what) {
    const auto found = ids.find(token);
    if (found == ids.end())
      throw data_error("tokenizer: expected {} \"{}\" in the vocabulary of {} tokens, found none", what, shown(token),
                       vocabulary.size());
    return found->second;
  };
  for (int byte = 0; byte < 256; ++byte) letters_[byte] = id_of(byte_letters()[byte], "the byte letter");
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const int32_t first = id_of(left, "the merge part"), second = id_of(right, "the merge part");
    merges_.emplace(pair_key(first, second),
                    Merge{static_cast<int32_t>(rank), id_of(left + right, "the merged token")});
  }
  for (const std::string& token : vocabulary) bytes_.push_back(bytes_of(token));
  if (!options_.whole_words) return;
  for (size_t id = 0; id < vocabulary.size(); ++id) words_.emplace(std::move(vocabulary[id]), static_cast<int32_t>(id));
}

const ByteBpe::Merge* ByteBpe::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// Always merges the pair of the lowest rank, the leftmost of several.
void ByteBpe::merge_all(std::vector<int32_t>& symbols) const {
  constexpr size_t kShort = 24;
  if (symbols.size() <= kShort) {  // searching all pairs every time is faster than a heap
    while (symbols.size() > 1) {
      const Merge* best = nullptr;
      size_t where = 0;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const Merge* merge = find(symbols[i], symbols[i + 1]);
        if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) best = merge, where = i;
      }
      if (best == nullptr) return;
      symbols[where] = best->id;
      symbols.erase(symbols.begin() + static_cast<int64_t>(where) + 1);
    }
    return;
  }
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<int32_t> previous(count), next(count);
  struct Candidate {
    int32_t rank, left, left_symbol, right_symbol, id;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  auto offer = [&](int32_t left) {
    if (left < 0 || next[left] >= count) return;
    const Merge* merge = find(symbols[left], symbols[next[left]]);
    if (merge != nullptr) queue.push({merge->rank, left, symbols[left], symbols[next[left]], merge->id});
  };
  for (int32_t i = 0; i < count; ++i) previous[i] = i - 1, next[i] = i + 1;
  for (int32_t i = 0; i + 1 < count; ++i) offer(i);
  constexpr int32_t kGone = -1;
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const int32_t right = symbols[c.left] == c.left_symbol ? next[c.left] : count;
    if (right >= count || symbols[right] != c.right_symbol) continue;  // one of them was merged with another
    symbols[c.left] = c.id;
    symbols[right] = kGone;
    next[c.left] = next[right];
    if (next[right] < count) previous[next[right]] = c.left;
    offer(previous[c.left]);
    offer(c.left);
  }
  std::erase(symbols, kGone);
}

std::vector<int32_t> ByteBpe::symbols_of(std::string_view word) const {
  if (options_.whole_words) {
    std::string letters;
    for (const char c : word) letters += byte_letters()[static_cast<uint8_t>(c)];
    if (const auto found = words_.find(letters); found != words_.end()) return {found->second};
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  for (const char c : word) symbols.push_back(letters_[static_cast<uint8_t>(c)]);
  merge_all(symbols);
  return symbols;
}

void ByteBpe::add_word(std::string_view text, std::string_view word, int64_t begin, bool borrowed_space,
                       Encoding& to) const {
  std::vector<int32_t> symbols = symbols_of(word);
  int64_t at = begin;  // in the text; the added space is not part of it and shares the place of the next character
  bool skip = borrowed_space;
  for (const int32_t id : symbols) {
    const std::string& bytes = bytes_[id];
    const int64_t end = at + static_cast<int64_t>(bytes.size()) - (skip ? 1 : 0);
    TextRange place = whole_characters(text, {at, std::max(end, at + (skip ? 1 : 0))});
    if (options_.trim_places) {
      const auto spaces = static_cast<int64_t>(std::min(bytes.find_first_not_of(' '), bytes.size()));
      const auto behind = static_cast<int64_t>(bytes.size() - 1 - bytes.find_last_not_of(' '));  // all of them: size
      const int64_t kept = options_.keep_first && to.ids.empty() && spaces == 1 ? 1 : 0;
      for (int64_t n = kept; n < spaces; ++n)  // the added space stands for the first character
        place.begin = std::min(whole_characters(text, {place.begin, place.begin + 1}).end, place.end);
      place.end =
          behind == static_cast<int64_t>(bytes.size()) ? place.begin : std::max(place.end - behind, place.begin);
    }
    to.ids.push_back(id);
    to.places.push_back(place);
    at = end;
    skip = false;
  }
}

void ByteBpe::encode(std::string_view text, TextRange range, Encoding& to) const {
  if (range.begin >= range.end) return;
  if (!options_.compose || !may_compose(text, range)) return encode_words(text, range, to);
  const ComposedText composed = compose(text, range);
  const size_t first = to.ids.size();
  encode_words(composed.text, {0, static_cast<int64_t>(composed.text.size())}, to);
  for (size_t i = first; i < to.places.size(); ++i) {  // places in the text before
    TextRange& place = to.places[i];
    const int64_t last = std::max(place.begin, place.end - 1);
    const bool behind = place.begin >= static_cast<int64_t>(composed.sources.size());
    place = behind
                ? TextRange{range.end, range.end}
                : TextRange{composed.sources[place.begin].begin,
                            place.begin < place.end ? composed.sources[last].end : composed.sources[place.begin].begin};
  }
}

void ByteBpe::encode_words(std::string_view text, TextRange range, Encoding& to) const {
  const std::string_view piece = text.substr(0, range.end);
  int64_t at = range.begin;
  if (options_.space_in_front && piece[at] != ' ') {
    std::string spaced(1, ' ');
    spaced += piece.substr(at);
    const int64_t end = word_end(spaced, 0, options_.pattern);
    add_word(piece, std::string_view(spaced).substr(0, end), at, true, to);
    at += end - 1;
  }
  while (at < range.end) {
    const int64_t end = word_end(piece, at, options_.pattern);
    add_word(piece, piece.substr(at, end - at), at, false, to);
    at = end;
  }
}

std::string ByteBpe::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id >= 0 && id < size()) text += bytes_[id];
  }
  return text;
}

}  // namespace strata
