// Means, deviations, the paired t-test, and p-values of many tests.
#pragma once

#include <vector>

namespace strata {

double mean(const std::vector<double>& values);
double median(std::vector<double> values);                     // of an even number the upper of the two; NaN of none
double standard_deviation(const std::vector<double>& values);  // with n - 1; NaN below two values

// Student's t-test of paired values, two-sided, and the 95% confidence interval of the mean difference b - a:
//   t = mean(d) / (sd(d) / sqrt(n)),  p = 2 P(T_{n-1} > |t|)
struct PairedTest {
  double difference = 0, t = 0, p = 1, low = 0, high = 0;
  bool valid = false;  // false below two pairs, or if all differences are equal
};
PairedTest paired_t_test(const std::vector<double>& a, const std::vector<double>& b);

// Holm's correction of the p-values of m tests: with probability 0.95 no true hypothesis is rejected at 0.05. The k-th
// smallest, counted from 0, becomes the largest of (m - j) p_j for j = 0 .. k, at most 1. In the order given.
std::vector<double> holm(const std::vector<double>& p);

}  // namespace strata
