// Random changes of training rows, so that a small data set lasts for more epochs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace strata {

struct Augment {
  int64_t jitter = 0;  // square images: mirrored with probability 1/2, and moved by up to this many pixels each way
  double hide = 0;     // share of the tokens that are replaced by the padding token
  uint64_t seed = 0;   // of this pass over the rows
};

// Depends only on the seed and the row's number, so a resumed run gets the same rows.
std::vector<Token> jitter_image(std::span<const Token> pixels, const Augment& augment, int64_t row);
void hide_tokens(std::span<int64_t> tokens, const Augment& augment, int64_t row);

}  // namespace strata
