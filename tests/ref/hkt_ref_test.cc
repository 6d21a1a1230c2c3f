// The reference against independent definitions: dense matrices, concatenated features, finite differences.
#include <gtest/gtest.h>

#include "cases/hkt_plain.h"

namespace strata::test {
namespace {

class HktRef : public testing::TestWithParam<HktCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, HktRef, testing::ValuesIn(hkt_cases()),
                         [](const auto& info) { return info.param.name; });

void run_ref(HktData<double>& d) {
  ASSERT_TRUE(hkt_forward_ref(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hkt_backward_ref(d.problem(), d.outputs(), d.gradients()).ok());
}

TEST_P(HktRef, EqualsDenseMatrices) {
  HktData<double> d(GetParam());
  run_ref(d);
  each_result(d, PlainHkt<double>(d), d.has_bias(), [](const std::string& name, const auto& got, const auto& want) {
    EXPECT_LT(relative_error(got, want), 1e-12) << name;
  });
}

// out = attention * v, and the rows of attention sum to one (or to zero, where no key is allowed).
TEST_P(HktRef, OutputIsMaterializedMatrixTimesV) {
  HktData<double> d(GetParam());
  run_ref(d);
  const HktCase& c = d.spec;
  for (int64_t b = 0; b < c.batch; ++b) {
    const int64_t rows = c.packed ? c.lengths[b] : c.tokens, keys = c.packed ? c.lengths_of_keys()[b] : c.keys();
    const auto [part, row] = d.queries.place(b, 0);
    const auto [key_part, key_row] = d.keys.place(b, 0);
    std::vector<double> scores(rows * keys), attention(rows * keys);
    for (int64_t h = 0; h < c.heads; ++h) {
      ASSERT_TRUE(hkt_materialize(d.problem(), b, h, scores.data(), attention.data()).ok());
      const int64_t kh = h / (c.heads / c.key_heads);
      for (int64_t i = 0; i < rows; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < keys; ++j) sum += attention[i * keys + j];
        const bool empty = d.lse(0, part, h, row + i) == -std::numeric_limits<double>::infinity();
        EXPECT_NEAR(sum, empty ? 0.0 : 1.0, 1e-12);
        if (c.dropout > 0) continue;  // the matrix is that before dropout
        for (int x = 0; x < c.value_size; ++x) {
          double o = 0;
          for (int64_t j = 0; j < keys; ++j) o += attention[i * keys + j] * d.v(key_part, kh, key_row + j, x);
          EXPECT_NEAR(d.out(part, h, row + i, x), o, 1e-12);
        }
      }
    }
  }
}

// The oracle of docs/MATH.md: one level over the features [a_0 q^(0)_i ; a_1 q^(1)_{i/2} ; ..] and [k^(0)_j ; ..].
TEST(HktRefOracle, EqualsFlatAttentionOnConcatenatedFeatures) {
  for (bool causal : {false, true}) {
    const HktCase spec{"concat", 2, 2, 2, 37, 4, 6, 5, causal, {37, 21}};
    HktData<double> d(spec);
    ASSERT_TRUE(hkt_forward_ref(d.problem(), d.outputs()).ok());

    HktCase flat = spec;
    flat.levels = 1;
    flat.head_size = spec.levels * spec.head_size;
    HktData<double> f(flat);
    f.q[0].each([&](int64_t b, int64_t h, int64_t t, int64_t c) {
      const int l = static_cast<int>(c / spec.head_size);
      f.q[0](b, h, t, c) = d.weights(0, 0, h, l) * d.q[l](b, h, t >> l, c % spec.head_size);
      f.k[0](b, h, t, c) = d.k[l](b, h, t >> l, c % spec.head_size);
    });
    f.v.copy_from(d.v);
    f.weights.fill(1.0);
    HktProblem problem = f.problem();
    problem.scale = d.problem().scale;
    ASSERT_TRUE(hkt_forward_ref(problem, f.outputs()).ok());
    EXPECT_LT(relative_error(d.out, f.out), 1e-13);
    EXPECT_LT(relative_error(d.lse, f.lse), 1e-13);
  }
}

// d loss / d x by central differences, for every number of every input, where loss = <dout, out> + <dlse, lse>.
class HktFiniteDifferences : public testing::TestWithParam<HktCase> {
 protected:
  static double loss(HktData<double>& d) {
    EXPECT_TRUE(hkt_forward_ref(d.problem(), d.outputs()).ok());
    double sum = 0;
    d.out.each([&](auto... at) { sum += d.out(at...) * d.dout(at...); });
    d.lse.each([&](auto... at) {
      if (std::isfinite(d.lse(at...))) sum += d.lse(at...) * d.dlse(at...);
    });
    return sum;
  }
  static void check(HktData<double>& d, Array<double>& input, const Array<double>& gradient, const std::string& name) {
    const Array<double> analytic = gradient;
    input.each([&](auto... at) {
      const double x = input(at...);
      if (std::isinf(x)) {
        EXPECT_EQ(analytic(at...), 0.0) << name;
        return;
      }
      constexpr double kStep = 1e-5;
      input(at...) = x + kStep;
      const double up = loss(d);
      input(at...) = x - kStep;
      const double down = loss(d);
      input(at...) = x;
      EXPECT_NEAR(analytic(at...), (up - down) / (2 * kStep), 2e-8) << name;
    });
  }
};
HktCase small(HktCase c, double dropout, int64_t keys, int64_t left, bool packed) {
  c.dropout = dropout;
  c.alibi = true;
  c.key_tokens = keys;
  c.window_left = left;
  c.packed = packed;
  if (packed) c.key_lengths = {keys, 2, 0};
  return c;
}
INSTANTIATE_TEST_SUITE_P(Arguments, HktFiniteDifferences,
                         testing::Values(small({"dropout_cross", 2, 2, 1, 6, 2, 2, 2}, 0.3, 9, 3, false),
                                         small({"packed", 3, 2, 2, 5, 3, 2, 2, true, {5, 0, 3}}, 0.2, 4, 2, true)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Cases, HktFiniteDifferences,
                         testing::Values(HktCase{"l3_causal", 1, 2, 1, 7, 3, 3, 2, true},
                                         HktCase{"l2_lengths", 2, 1, 1, 5, 2, 2, 3, false, {5, 3}},
                                         HktCase{"l4_bias_shared", 2, 2, 2, 6, 4, 2, 2, true, {}, BiasKind::kShared},
                                         HktCase{"l2_bias_full", 1, 2, 2, 5, 2, 2, 2, false, {}, BiasKind::kFull},
                                         HktCase{
                                             "l2_masking_rows", 1, 1, 1, 7, 2, 2, 2, false, {}, BiasKind::kMasking}),
                         [](const auto& info) { return info.param.name; });

TEST_P(HktFiniteDifferences, ReferenceGradients) {
  for (bool weight_zero : {false, true}) {
    HktData<double> d(GetParam());
    if (weight_zero) {  // the gradient of a convex weight must be right at weight 0 too
      for (int64_t h = 0; h < d.spec.heads; ++h) d.weights(0, 0, h, d.spec.levels - 1) = 0.0;
    }
    run_ref(d);
    const auto dq = d.dq, dk = d.dk;
    for (int l = 0; l < d.spec.levels; ++l) {
      check(d, d.q[l], dq[l], "q[" + std::to_string(l) + "]");
      check(d, d.k[l], dk[l], "k[" + std::to_string(l) + "]");
    }
    check(d, d.v, Array<double>(d.dv), "v");
    check(d, d.weights, Array<double>(d.dweights), "weights");
    if (d.has_bias()) check(d, d.bias, Array<double>(d.dbias), "bias");
  }
}

TEST(HktCost, SumsTheSquaresOfTheLevels) {
  EXPECT_EQ(hkt_cost(5, 1), 25);
  EXPECT_EQ(hkt_cost(5, 3), 25 + 9 + 4);
  EXPECT_EQ(hkt_cost(0, 3), 0);
}

TEST(HktRefErrors, OtherPrecisionsAreRefused) {
  HktData<float> d(hkt_cases()[0]);
  const Status status = hkt_forward_ref(d.problem(), d.outputs());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("kFloat64"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace strata::test
