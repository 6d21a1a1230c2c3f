// Training rows changed at random, so that a small data set lasts for more epochs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace strata {

struct Augment {
  int64_t jitter = 0;  // square images: mirrored half of the time, and moved by up to so many pixels each way
  double hide = 0;     // share of the tokens that become padding, and so tell nothing but that they are there
  uint64_t seed = 0;   // of this pass over the rows
};

// A function of the seed and the row's number alone: a run that is resumed meets the same rows again.
std::vector<Token> jitter_image(std::span<const Token> pixels, const Augment& augment, int64_t row);
void hide_tokens(std::span<int64_t> tokens, const Augment& augment, int64_t row);

}  // namespace strata
