#include "util/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "util/error.h"

namespace strata {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double standard_deviation(const std::vector<double>& values) {
  if (values.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double center = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - center) * (value - center);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

PairedTest paired_t_test(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size())
    throw usage_error("paired t-test: expected as many values on both sides, got {} and {}", a.size(), b.size());
  PairedTest test;
  if (a.empty()) return test;
  std::vector<double> differences;
  for (size_t i = 0; i < a.size(); ++i) differences.push_back(b[i] - a[i]);
  test.difference = mean(differences);
  const double deviation = standard_deviation(differences);
  // Equal differences have no spread to test against, apart from rounding errors.
  if (!(deviation > 1e-12 * std::abs(test.difference))) return test;
  const auto n = static_cast<double>(a.size());
  const double error = deviation / std::sqrt(n);
  const boost::math::students_t distribution(n - 1);
  test.t = test.difference / error;
  test.p = 2 * boost::math::cdf(boost::math::complement(distribution, std::abs(test.t)));
  const double reach = error * boost::math::quantile(boost::math::complement(distribution, 0.025));
  test.low = test.difference - reach;
  test.high = test.difference + reach;
  test.valid = true;
  return test;
}

std::vector<double> holm(const std::vector<double>& p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<double> corrected(p.size());
  double largest = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    largest = std::max(largest, static_cast<double>(p.size() - k) * p[order[k]]);
    corrected[order[k]] = std::min(1.0, largest);
  }
  return corrected;
}

}  // namespace strata
