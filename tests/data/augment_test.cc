// Random changes of training rows.
#include "data/augment.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "data/loader.h"

namespace strata {
namespace {

// Whether mirroring and moving `from` by up to `by` pixels can give `image`; adds which ones to `met`.
bool is_jittered(const std::vector<Token>& image, const std::vector<Token>& from, int64_t side, int64_t by,
                 std::set<std::vector<int64_t>>& met) {
  auto at = [&](int64_t y, int64_t x) {
    return from[std::clamp<int64_t>(y, 0, side - 1) * side + std::clamp<int64_t>(x, 0, side - 1)];
  };
  for (int64_t mirror = 0; mirror < 2; ++mirror) {
    for (int64_t down = -by; down <= by; ++down) {
      for (int64_t right = -by; right <= by; ++right) {
        bool same = true;
        for (int64_t y = 0; y < side && same; ++y) {
          for (int64_t x = 0; x < side && same; ++x) {
            const int64_t column = std::clamp<int64_t>(x - right, 0, side - 1);
            same = image[y * side + x] == at(y - down, mirror == 1 ? side - 1 - column : column);
          }
        }
        if (same) {
          met.insert({mirror, down, right});
          return true;
        }
      }
    }
  }
  return false;
}

TEST(Augment, ImagesAreMirroredAndMoved) {
  constexpr int64_t kSide = 6, kBy = 2;
  std::vector<Token> image(kSide * kSide);
  std::iota(image.begin(), image.end(), Token{1});
  std::set<std::vector<int64_t>> met;
  for (int64_t row = 0; row < 1000; ++row) {
    const auto moved = jitter_image(image, {kBy, 0, 7}, row);
    ASSERT_TRUE(is_jittered(moved, image, kSide, kBy, met)) << "row " << row;
    ASSERT_EQ(moved, jitter_image(image, {kBy, 0, 7}, row)) << "the same seed and row";
  }
  EXPECT_EQ(met.size(), 2U * 5 * 5) << "every way is taken";
  EXPECT_THROW(jitter_image(std::vector<Token>(7), {kBy, 0, 7}, 0), std::exception);
}

TEST(Augment, TokensAreHidden) {
  std::vector<int64_t> tokens(100000, 5), again = tokens, others = tokens, none = tokens;
  hide_tokens(tokens, {0, 0.25, 3}, 11);
  hide_tokens(again, {0, 0.25, 3}, 11);
  hide_tokens(others, {0, 0.25, 4}, 11);
  hide_tokens(none, {0, 0, 3}, 11);
  EXPECT_EQ(tokens, again);
  EXPECT_NE(tokens, others) << "another epoch hides others";
  EXPECT_EQ(none, std::vector<int64_t>(100000, 5));
  const auto hidden = std::count(tokens.begin(), tokens.end(), int64_t{kPad});
  EXPECT_NEAR(static_cast<double>(hidden), 25000, 5 * std::sqrt(100000 * 0.25 * 0.75));
  EXPECT_EQ(hidden + std::count(tokens.begin(), tokens.end(), 5), 100000);
}

// A row is changed in the same way in any order and any batch; targets and padding stay.
TEST(Augment, BatchesChangeRowsByTheirNumber) {
  Dataset data;
  for (int32_t i = 0; i < 4; ++i) data.add_row(std::vector<Token>(16, static_cast<Token>(i + 1)), i, 100);
  LoaderOptions one, all;
  one.batch = 1;
  one.augment = all.augment = {0, 0.5, 9};
  all.order = {2, 0, 3, 1};
  const Batch batch = make_batch(data, all, 0);
  for (int64_t r = 0; r < 4; ++r) {
    const Batch row = make_batch(data, one, all.order[r]);
    EXPECT_EQ(row.tokens, std::vector<int64_t>(batch.tokens.begin() + 16 * r, batch.tokens.begin() + 16 * (r + 1)));
    EXPECT_EQ(row.targets[0], batch.targets[r]);
    EXPECT_NE(row.tokens, std::vector<int64_t>(16, all.order[r] + 1));
  }
  one.goal = Goal::kNextToken;
  EXPECT_EQ(make_batch(data, one, 3).targets, std::vector<int64_t>(15, 4)) << "what is predicted is never hidden";
}

}  // namespace
}  // namespace strata
