// The causal filter: hand-computed values, the table of cases on every instruction set, gradients by finite
// differences, causality, errors.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cases/causal_filter_case.h"
#include "cases/hkt_plain.h"
#include "strata/cpu.h"

namespace strata {
namespace {

std::vector<double> random_numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> numbers(count);
  for (double& x : numbers) x = normal(random);
  return numbers;
}

CausalFilter make(int64_t batch, int64_t tokens, int64_t channels, int taps, int stride, bool dense) {
  CausalFilter f;
  f.dtype = DType::kFloat64;
  f.batch = batch;
  f.tokens = tokens;
  f.channels = channels;
  f.taps = taps;
  f.stride = stride;
  f.dense = dense;
  return f;
}

TEST(CausalFilter, HandComputed) {
  const std::vector<double> x = {1, 2, 3, 4, 5}, weight = {10, 1};  // two taps: y_m = 10 x_{2m} + x_{2m-1}
  CausalFilter f = make(1, 5, 1, 2, 2, false);
  f.x = x.data();
  f.weight = weight.data();
  std::vector<double> y(3);
  ASSERT_TRUE(causal_filter_forward(f, y.data()).ok());
  EXPECT_EQ(y, (std::vector<double>{10, 32, 54}));  // the first row has one tap only
}

template <class S>
void run(test::FilterData<S>& d, int threads) {
  ASSERT_TRUE(causal_filter_forward(d.problem(threads), d.y.data()).ok());
  ASSERT_TRUE(causal_filter_backward(d.problem(threads), {d.dy.data(), d.dx.data(), d.dweight.data()}).ok());
}

template <class S>
void expect_defined(const test::FilterCase& spec, double tolerance) {
  test::FilterData<S> got(spec), two(spec);
  run(got, 1);
  run(two, 3);
  test::FilterData<double> want(spec);
  want.copy_inputs_from(got);
  want.define();
  got.each_result(want, [&](const char* name, const auto& a, const auto& b) {
    EXPECT_LE(test::relative_error(a, b), tolerance) << name << " of " << spec.name;
  });
  got.each_result(two, [&](const char* name, const auto& a, const auto& b) {
    EXPECT_EQ(std::memcmp(a.raw().data(), b.raw().data(), a.raw().size() * sizeof(a.raw()[0])), 0)
        << name << " of " << spec.name << " at three threads";
  });
}

TEST(CausalFilter, EveryCaseOnEveryInstructionSet) {
  const Isa before = current_isa();
  for (const Isa isa : supported_isas()) {
    ASSERT_TRUE(set_isa(isa).ok());
    SCOPED_TRACE(isa_name(isa));
    for (const test::FilterCase& spec : test::filter_cases()) {
      expect_defined<double>(spec, 1e-14);
      expect_defined<float>(spec, 2e-6);
      expect_defined<test::BFloat16>(spec, 5e-3);
    }
  }
  ASSERT_TRUE(set_isa(before).ok());
}

TEST(CausalFilter, DenseWithDiagonalWeightsIsDepthwise) {
  const int64_t C = 3;
  const auto x = random_numbers(2 * 7 * C, 1);
  const auto diagonal = random_numbers(3 * C, 2);
  std::vector<double> full(3 * C * C, 0.0), y(2 * 4 * C), z(2 * 4 * C);
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < C; ++c) full[(r * C + c) * C + c] = diagonal[r * C + c];
  CausalFilter f = make(2, 7, C, 3, 2, false);
  f.x = x.data();
  f.weight = diagonal.data();
  ASSERT_TRUE(causal_filter_forward(f, y.data()).ok());
  f.dense = true;
  f.weight = full.data();
  ASSERT_TRUE(causal_filter_forward(f, z.data()).ok());
  for (size_t at = 0; at < y.size(); ++at) EXPECT_NEAR(y[at], z[at], 1e-14);
}

TEST(CausalFilter, GradientsByFiniteDifferences) {
  for (int stride : {1, 2}) {
    for (bool dense : {false, true}) {
      CausalFilter f = make(2, 5, 3, 4, stride, dense);
      auto x = random_numbers(2 * 5 * 3, 3);
      auto weight = random_numbers(4 * 3 * (dense ? 3 : 1), 4);
      const int64_t rows = filtered_tokens(5, stride);
      const auto dy = random_numbers(2 * rows * 3, 5);
      f.x = x.data();
      f.weight = weight.data();
      std::vector<double> dx(x.size()), dweight(weight.size()), y(dy.size());
      ASSERT_TRUE(causal_filter_backward(f, {dy.data(), dx.data(), dweight.data()}).ok());
      auto loss = [&] {
        EXPECT_TRUE(causal_filter_forward(f, y.data()).ok());
        double sum = 0;
        for (size_t at = 0; at < y.size(); ++at) sum += y[at] * dy[at];
        return sum;
      };
      auto check = [&](std::vector<double>& input, const std::vector<double>& gradient) {
        for (size_t at = 0; at < input.size(); ++at) {
          const double kept = input[at];
          input[at] = kept + 0.5;  // the filter is linear in each input: any step is exact
          const double up = loss();
          input[at] = kept - 0.5;
          EXPECT_NEAR(gradient[at], up - loss(), 1e-12);
          input[at] = kept;
        }
      };
      check(x, dx);
      check(weight, dweight);
    }
  }
}

// x^(l)_m depends on x_0 .. x_{m 2^l} only, at every level.
TEST(CausalFilter, PyramidIsCausal) {
  const int64_t T = 23;
  const auto weight = random_numbers(3, 6);
  auto pyramid = [&](std::vector<double> x) {
    std::vector<std::vector<double>> levels = {std::move(x)};
    for (int l = 1; l < 4; ++l) {
      CausalFilter f = make(1, static_cast<int64_t>(levels.back().size()), 1, 3, 2, false);
      f.x = levels.back().data();
      f.weight = weight.data();
      std::vector<double> y(filtered_tokens(f.tokens, 2));
      EXPECT_TRUE(causal_filter_forward(f, y.data()).ok());
      levels.push_back(std::move(y));
    }
    return levels;
  };
  const auto x = random_numbers(T, 7);
  const auto clean = pyramid(x);
  for (int64_t t = 0; t < T; ++t) {
    auto changed = x;
    changed[t] += 1;
    const auto dirty = pyramid(changed);
    for (int l = 0; l < 4; ++l) {
      for (int64_t m = 0; (m << l) < t; ++m) EXPECT_EQ(dirty[l][m], clean[l][m]) << "level " << l << " row " << m;
    }
  }
}

TEST(CausalFilter, MistakesAreNamed) {
  const double number = 0;
  CausalFilter f = make(1, 1, 1, 3, 3, false);
  f.x = f.weight = &number;
  double y;
  EXPECT_NE(causal_filter_forward(f, &y).message().find("stride: expected 1 or 2, got 3"), std::string::npos);
  f.stride = 2;
  f.taps = 0;
  EXPECT_NE(causal_filter_forward(f, &y).message().find("taps: expected 1 or more, got 0"), std::string::npos);
  f.taps = 1;
  f.weight = nullptr;
  EXPECT_NE(causal_filter_forward(f, &y).message().find("weight"), std::string::npos);
  f.weight = &number;
  EXPECT_NE(causal_filter_backward(f, {}).message().find("dy, dx, dweight"), std::string::npos);
  EXPECT_TRUE(causal_filter_forward(f, &y).ok());
  f.dtype = DType::kFloat16;
  EXPECT_NE(causal_filter_forward(f, &y).message().find("on the CPU, got kFloat16"), std::string::npos);
}

}  // namespace
}  // namespace strata
