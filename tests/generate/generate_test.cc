// Sampling, text as it comes, and language models one token after the other.
#include <gtest/gtest.h>

#include <cmath>

#include "data/support.h"
#include "generate/sample.h"
#include "generate/text_out.h"

namespace strata {
namespace {

using torch::Tensor;

std::vector<double> frequencies(const std::vector<double>& logits, const SampleOptions& options) {
  constexpr int kDraws = 20000;
  std::vector<double> shares(logits.size(), 0);
  Random random(7);
  for (int i = 0; i < kDraws; ++i) shares[sample_token(logits, options, random)] += 1.0 / kDraws;
  return shares;
}

TEST(SampleToken, FollowsTheProbabilities) {
  const std::vector<double> logits = {std::log(0.5), std::log(0.2), std::log(0.3)};
  auto expect = [&](const SampleOptions& options, const std::vector<double>& wanted) {
    const std::vector<double> shares = frequencies(logits, options);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(shares[i], wanted[i], 0.015) << i;
  };
  expect({}, {0.5, 0.2, 0.3});
  const double half = std::sqrt(0.5) + std::sqrt(0.2) + std::sqrt(0.3);
  expect({2.0, 0, 1}, {std::sqrt(0.5) / half, std::sqrt(0.2) / half, std::sqrt(0.3) / half});
  expect({1.0, 2, 1}, {0.625, 0, 0.375});
  expect({1.0, 0, 0.6}, {0.625, 0, 0.375});
  expect({1.0, 0, 0.5}, {1, 0, 0});
  expect({1.0, 1, 1}, {1, 0, 0});
  expect({0.0, 0, 1}, {1, 0, 0});
}

TEST(SampleToken, IsRepeatableAndNeverDrawsWhatIsNoNumber) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (int seed = 0; seed < 50; ++seed) {
    Random a(seed), b(seed);
    const std::vector<double> logits = {nan, -inf, 1, 2, inf};
    const int64_t token = sample_token(logits, {}, a);
    EXPECT_TRUE(token == 2 || token == 3);
    EXPECT_EQ(token, sample_token(logits, {}, b));
  }
  Random random(1);
  EXPECT_EQ(sample_token({nan, nan}, {}, random), -1);
  EXPECT_EQ(sample_token({3, 3, 3}, {0.0, 0, 1}, random), 0) << "the first of equals";
  EXPECT_EQ(sample_token({-1e300, 1e300}, {1e-3, 0, 1}, random), 1) << "no overflow";
}

std::vector<std::string> pieces(const std::vector<std::string>& stops, const std::vector<std::string>& added,
                                bool* all) {
  std::vector<std::string> written;
  TextOut out(stops, [&](std::string_view piece) { written.emplace_back(piece); });
  *all = true;
  for (const std::string& bytes : added) {
    if (!out.add(bytes)) {
      *all = false;
      break;
    }
  }
  out.finish();
  std::string text;
  for (const std::string& piece : written) text += piece;
  EXPECT_EQ(text, out.text());
  return written;
}

TEST(TextOut, WritesWholeCharactersAndNothingOfAStopText) {
  bool all = false;
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces({}, {"a", "bc"}, &all), (Pieces{"a", "bc"}));
  EXPECT_EQ(pieces({}, {"a\xc3", "\xa4", "b"}, &all), (Pieces{"a", "\xc3\xa4", "b"}));
  EXPECT_EQ(pieces({}, {"\xf0\x9f", "\x98", "\x80!"}, &all), (Pieces{"\xf0\x9f\x98\x80!"}));
  EXPECT_EQ(pieces({}, {"a\xe2\x82"}, &all), (Pieces{"a", "\xef\xbf\xbd\xef\xbf\xbd"})) << "cut off at the end";
  EXPECT_EQ(pieces({}, {"\xc2", "x\xff"}, &all), (Pieces{"\xef\xbf\xbdx", "\xef\xbf\xbd"})) << "no characters";
  EXPECT_EQ(pieces({}, {"\xed\xa0\x80."}, &all)[0].size(), 10U) << "a surrogate is none";
  EXPECT_TRUE(all);
  EXPECT_EQ(pieces({"STOP"}, {"go ", "ST", "ART", " STOP", " more"}, &all), (Pieces{"go ", "START", " "}));
  EXPECT_FALSE(all);
  EXPECT_EQ(pieces({"ab", "b"}, {"xab"}, &all), (Pieces{"x"}));
  EXPECT_EQ(pieces({"\n\n"}, {"a\n", "b\n"}, &all), (Pieces{"a", "\nb", "\n"})) << "held back until it is certain";
  EXPECT_TRUE(all);
}

}  // namespace
}  // namespace strata
