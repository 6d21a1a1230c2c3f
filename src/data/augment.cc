#include "data/augment.h"

#include <algorithm>
#include <cmath>

#include "util/error.h"
#include "util/random.h"

namespace strata {
namespace {

constexpr uint64_t kJitter = 1, kHide = 2;  // separate streams of random numbers

Random random_of(const Augment& augment, int64_t row, uint64_t purpose) {
  return Random(mix(mix(augment.seed + purpose) ^ static_cast<uint64_t>(row)));
}

}  // namespace

// Pixels from outside the image repeat the edge.
std::vector<Token> jitter_image(std::span<const Token> pixels, const Augment& augment, int64_t row) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(pixels.size()))));
  if (side * side != static_cast<int64_t>(pixels.size()))
    throw usage_error("jitter: expected square images, got rows of {} tokens", pixels.size());
  Random random = random_of(augment, row, kJitter);
  const bool mirror = random.below(2) == 1;
  const auto steps = static_cast<uint32_t>(2 * augment.jitter + 1);
  const int64_t down = static_cast<int64_t>(random.below(steps)) - augment.jitter;
  const int64_t right = static_cast<int64_t>(random.below(steps)) - augment.jitter;
  std::vector<Token> moved(pixels.size());
  auto inside = [side](int64_t at) { return std::clamp<int64_t>(at, 0, side - 1); };
  for (int64_t y = 0; y < side; ++y) {
    for (int64_t x = 0; x < side; ++x) {
      const int64_t from = inside(x - right);
      moved[y * side + x] = pixels[inside(y - down) * side + (mirror ? side - 1 - from : from)];
    }
  }
  return moved;
}

void hide_tokens(std::span<int64_t> tokens, const Augment& augment, int64_t row) {
  Random random = random_of(augment, row, kHide);
  for (int64_t& token : tokens) {
    if (random.unit() < augment.hide) token = kPad;
  }
}

}  // namespace strata
