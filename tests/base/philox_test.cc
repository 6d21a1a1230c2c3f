// Philox against the vectors that its authors publish, and what dropout makes of it.
#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace strata::test {
namespace {

void expect_words(const PhiloxBlock& got, const PhiloxBlock& want) {
  for (int x = 0; x < 4; ++x) EXPECT_EQ(got.word[x], want.word[x]) << x;
}

TEST(Philox, GivesTheKnownAnswers) {
  expect_words(philox(0, {{0, 0, 0, 0}}), {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}});
  const uint32_t ones = 0xffffffffu;
  expect_words(philox(~uint64_t{0}, {{ones, ones, ones, ones}}),
               {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}});
  expect_words(philox(0x299f31d0a4093822u, {{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}),
               {{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}});
}

TEST(Dropout, KeepsTheShareThatIsAskedFor) {
  for (const double probability : {0.05, 0.1, 0.5, 0.9}) {
    const uint32_t threshold = dropout_threshold(probability);
    int64_t kept = 0;
    constexpr int64_t kRows = 200, kEntries = 1000;
    for (uint32_t row = 0; row < kRows; ++row)
      for (uint32_t entry = 0; entry < kEntries; ++entry) kept += is_kept(7, threshold, 0, 3, row, entry) ? 1 : 0;
    const double n = static_cast<double>(kRows * kEntries);
    EXPECT_NEAR(static_cast<double>(kept) / n, 1 - probability, 4 * std::sqrt(probability * (1 - probability) / n));
    EXPECT_NEAR(dropout_factor(threshold) * (1 - probability), 1, 1e-3);
  }
}

// Neighbours in any direction, another offset and another seed draw anew.
TEST(Dropout, DrawsDifferForEveryPlaceSeedAndOffset) {
  const int64_t states[][2] = {{1, 0}, {1, 1}, {2, 0}};
  auto same = [](const auto& draw_a, const auto& draw_b) {
    int equal = 0;
    for (uint32_t entry = 0; entry < 4000; ++entry) equal += draw_a(entry) == draw_b(entry) ? 1 : 0;
    return equal;
  };
  auto draw = [&](int state, uint32_t b, uint32_t h, uint32_t row) {
    return [=, key = dropout_key(states[state])](uint32_t entry) { return is_kept(key, 32768, b, h, row, entry); };
  };
  const auto first = draw(0, 0, 0, 0);
  EXPECT_EQ(same(first, draw(0, 0, 0, 0)), 4000);
  for (const auto& other : {draw(1, 0, 0, 0), draw(2, 0, 0, 0), draw(0, 1, 0, 0), draw(0, 0, 1, 0), draw(0, 0, 0, 1)})
    EXPECT_NEAR(same(first, other), 2000, 130);  // four standard deviations
}

}  // namespace
}  // namespace strata::test
