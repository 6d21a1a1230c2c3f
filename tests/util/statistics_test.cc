#include "util/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "util/error.h"
#include "util/scipy_cases.h"

namespace strata {
namespace {

TEST(Statistics, PairedTestAgreesWithScipy) {
  for (const ScipyCase& c : kScipy) {
    const PairedTest test = paired_t_test(c.a, c.b);
    ASSERT_TRUE(test.valid);
    EXPECT_NEAR(test.difference, c.difference, 1e-12);
    EXPECT_NEAR(test.t, c.t, 1e-9 * std::abs(c.t));
    EXPECT_NEAR(test.p, c.p, 1e-9 * c.p);
    EXPECT_NEAR(test.low, c.low, 1e-9);
    EXPECT_NEAR(test.high, c.high, 1e-9);
    EXPECT_NEAR(standard_deviation(c.a), c.deviation_of_a, 1e-12);
  }
}

// statsmodels.stats.multitest.multipletests(p, method="holm")
TEST(Statistics, HolmAgreesWithStatsmodels) {
  const std::vector<double> p = {0.01, 0.04, 0.03, 0.005, 0.6}, expected = {0.04, 0.09, 0.09, 0.025, 0.6};
  const std::vector<double> corrected = holm(p);
  ASSERT_EQ(corrected.size(), p.size());
  for (size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(corrected[i], expected[i], 1e-15);
  EXPECT_EQ(holm({0.5, 0.7}), (std::vector<double>{1.0, 1.0}));  // never above 1
  EXPECT_EQ(holm({0.02}), std::vector<double>{0.02});
  EXPECT_TRUE(holm({}).empty());
}

TEST(Statistics, SaysWhenThereIsNothingToTest) {
  EXPECT_FALSE(paired_t_test({1}, {2}).valid);
  EXPECT_EQ(paired_t_test({1}, {2}).difference, 1);
  EXPECT_FALSE(paired_t_test({1, 2, 3}, {2, 3, 4}).valid);              // no spread
  EXPECT_FALSE(paired_t_test({0.1, 0.2, 0.3}, {0.4, 0.5, 0.6}).valid);  // none but rounding's
  EXPECT_FALSE(paired_t_test({1, 2}, {1, 2}).valid);
  EXPECT_THROW(paired_t_test({1, 2}, {1}), Error);
  EXPECT_TRUE(std::isnan(standard_deviation({1})));
}

}  // namespace
}  // namespace strata
