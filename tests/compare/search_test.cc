// The search for learning rates: what is tried, what is chosen, what is said about it.
#include "compare/search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "util/error.h"

namespace strata {
namespace {

// Scores by the rate alone, and every call's rates.
struct Trials {
  std::function<double(double)> score;
  std::vector<std::vector<std::string>> calls = {};
  std::vector<double> operator()(const std::vector<Variant>& variants) {
    std::vector<double> scores;
    calls.emplace_back();
    for (const Variant& variant : variants) {
      calls.back().push_back(variant.name);
      scores.push_back(score(variant.config.train.learning_rate));
    }
    return scores;
  }
};

std::vector<RateChoice> search(std::vector<Variant>& variants, Trials& trials, bool lower_is_better = false) {
  return search_rates(variants, {1e-3, 2e-3, 4e-3}, lower_is_better,
                      [&](const std::vector<Variant>& tried) { return trials(tried); });
}

double peak_at(double rate, double best) { return 50 - std::abs(std::log2(rate / best)); }

TEST(Search, TakesTheBestInside) {
  std::vector<Variant> variants = parse_variants({"flat", "hkt:learning_rate=3e-4", "hsa"}, RunConfig());
  Trials trials{[](double rate) { return peak_at(rate, 2e-3); }};
  const auto choices = search(variants, trials);
  ASSERT_EQ(choices.size(), 2U) << "an attention with a rate of its own is not searched";
  EXPECT_EQ(choices[1].attention, "hsa");
  EXPECT_EQ(choices[0].rate, 2e-3);
  EXPECT_FALSE(choices[0].at_edge);
  EXPECT_EQ(trials.calls.size(), 1U);
  EXPECT_EQ(trials.calls[0][1], "flat:learning_rate=0.002");
  EXPECT_EQ(variants[0].config.train.learning_rate, 2e-3);
  EXPECT_EQ(variants[1].config.train.learning_rate, 3e-4);
  EXPECT_EQ(variants[2].config.train.learning_rate, 2e-3);
}

TEST(Search, GoesOnBeyondAnEdge) {
  for (const double best : {2.5e-4, 1.6e-2}) {
    std::vector<Variant> variants = parse_variants({"flat"}, RunConfig());
    Trials trials{[&](double rate) { return -peak_at(rate, best); }};  // lower is better, as bits per byte
    const auto choices = search(variants, trials, true);
    EXPECT_DOUBLE_EQ(choices[0].rate, best);
    EXPECT_FALSE(choices[0].at_edge);
    EXPECT_EQ(choices[0].scores.size(), 6U);
    EXPECT_EQ(trials.calls.size(), 4U);
  }
  std::vector<Variant> variants = parse_variants({"flat"}, RunConfig());
  Trials trials{[](double rate) { return rate; }};  // always better: three more, and it says so
  const auto choices = search(variants, trials);
  EXPECT_EQ(choices[0].rate, 3.2e-2);
  EXPECT_TRUE(choices[0].at_edge);
  EXPECT_EQ(
      search_lines({{"search", {{"attentions", to_json(choices)}}}}).at(0),
      "learning rate of flat: 0.032, an edge of what was tried (validation 0.001: 0.00, 0.002: 0.00, 0.004: 0.00, "
      "0.008: 0.01, 0.016: 0.02, 0.032: 0.03)");
}

TEST(Search, ADivergedRunIsTheWorst) {
  std::vector<Variant> variants = parse_variants({"flat"}, RunConfig());
  Trials trials{[](double rate) { return rate > 3e-3 ? NAN : 40.0; }};
  const auto choices = search(variants, trials);
  EXPECT_EQ(choices[0].rate, 5e-4 / 4) << "of equal scores the lower rate, as far down as the search goes";
  EXPECT_TRUE(to_json(choices)[0]["tried"].back()["valid"].is_null());
  EXPECT_NE(search_lines({{"search", {{"attentions", to_json(choices)}}}}).at(0).find("0.004: diverged)"),
            std::string::npos);
  Trials never{[](double) { return NAN; }};
  EXPECT_THROW(search(variants, never), Error);
  EXPECT_TRUE(search_lines(Json::object()).empty()) << "no search, no lines";
}

TEST(Search, RatesAreChecked) {
  EXPECT_EQ(parse_rates({"2e-3", "0.001", "2e-3"}), (std::vector<double>{1e-3, 2e-3}));
  for (const std::vector<std::string>& bad : {std::vector<std::string>{"1e-3"},
                                              {"1e-3", "0.001"},
                                              {"1e-3", "x"},
                                              {"1e-3", "0"},
                                              {"1e-3", "-1"},
                                              {"1e-3", "11"},
                                              {"1e-3", "nan"}}) {
    EXPECT_THROW(parse_rates(bad), Error) << bad.back();
  }
}

}  // namespace
}  // namespace strata
