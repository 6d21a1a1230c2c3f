// Means, deviations and the paired t-test.
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

}  // namespace strata
