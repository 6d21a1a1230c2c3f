// Images with captions: the words of the captions, rows as tokens, inputs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace strata {

inline constexpr int64_t kCaptionVocabulary = 37;  // words
inline constexpr int64_t kLongestCaption = 9;      // words
// Grey levels first, as bytes everywhere, then the words: one table of embeddings for both.
inline constexpr int64_t kCaptionsVocabulary = kByteVocabulary + kCaptionVocabulary;

// Tokens of the longest row with images of this side, and back: 0 if no side has such rows.
constexpr int64_t captions_length(int64_t side) { return side * side + kLongestCaption; }
int64_t captions_side(int64_t length);

// What a caption claims: that its image shows one of these, or that it does not.
const std::vector<std::string>& claimed_names();  // the ten classes, animal, vehicle, bright scene, dark scene
struct Claim {
  int32_t name;
  bool denied;
};

// A sentence with this claim; its wording is chosen by the seed. And its words as tokens; throws a data error for
// unknown words.
std::string make_caption(const Claim& claim, uint64_t seed);
std::vector<Token> encode_caption(std::string_view caption);
const std::string& caption_word(Token token);

// A caption, a line end, and side x side grey bytes.
std::vector<Token> encode_captioned(std::string_view input, int64_t side);

}  // namespace strata
