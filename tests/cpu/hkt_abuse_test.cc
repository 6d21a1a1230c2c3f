// Properties that must hold for any input: causality, padding, NaN, empty sequences.
#include <gtest/gtest.h>

#include <functional>

#include "cases/hkt_plain.h"
#include "cases/isas.h"

namespace strata::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <class S>
void run(HktData<S>& d) {
  ASSERT_TRUE(hkt_forward(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hkt_backward(d.problem(), d.outputs(), d.gradients()).ok());
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Runs a test on every instruction set of the host.
class HktAbuse : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(set_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(set_isa(supported_isas().back()).ok()); }
};
INSTANTIATE_TEST_SUITE_P(Isas, HktAbuse, testing::ValuesIn(tested_isas()),
                         [](const auto& info) { return isa_name(info.param); });

// Token t enters level l at row ceil(t / 2^l) at the earliest (its anchor m 2^l must not precede it). Changing
// everything that depends on token t must not change a bit of the outputs before t.
template <class S>
void expect_causal() {
  const HktCase spec{"causal", 1, 1, 1, 70, 4, 8, 8, true};
  HktData<S> clean(spec);
  ASSERT_TRUE(hkt_forward(clean.problem(), clean.outputs()).ok());
  for (int64_t t = 0; t < spec.tokens; ++t) {
    for (double poison : {3.0, kNaN}) {
      HktData<S> d(spec);
      for (int l = 0; l < spec.levels; ++l) {
        for (int64_t m = hkt_level_tokens(t, l); m < hkt_level_tokens(spec.tokens, l); ++m) {
          for (int c = 0; c < spec.head_size; ++c) {
            d.q[l](0, 0, m, c) = static_cast<S>(poison);
            d.k[l](0, 0, m, c) = static_cast<S>(poison);
          }
        }
      }
      for (int64_t j = t; j < spec.tokens; ++j)
        for (int c = 0; c < spec.value_size; ++c) d.v(0, 0, j, c) = static_cast<S>(poison);
      ASSERT_TRUE(hkt_forward(d.problem(), d.outputs()).ok());
      for (int64_t i = 0; i < t; ++i) {
        ASSERT_EQ(d.lse(0, 0, 0, i), clean.lse(0, 0, 0, i)) << "row " << i << ", tokens changed from " << t;
        for (int c = 0; c < spec.value_size; ++c) ASSERT_EQ(d.out(0, 0, i, c), clean.out(0, 0, i, c)) << i << " " << t;
      }
    }
  }
}

TEST_P(HktAbuse, OutputsNeverDependOnLaterTokens) {
  expect_causal<float>();
  expect_causal<BFloat16>();
}

template <class S>
void expect_padding_unread() {
  for (bool causal : {false, true}) {
    const HktCase spec{"padding", 3, 2, 1, 130, 4, 8, 12, causal, {130, 65, 3}};
    HktData<S> clean(spec), dirty(spec);
    for (int64_t b = 0; b < spec.batch; ++b) {
      for (int l = 0; l < spec.levels; ++l) {
        for (int64_t m = hkt_level_tokens(spec.lengths[b], l); m < hkt_level_tokens(spec.tokens, l); ++m) {
          for (int c = 0; c < spec.head_size; ++c) {
            for (int64_t h = 0; h < spec.heads; ++h) dirty.q[l](b, h, m, c) = static_cast<S>(kNaN);
            dirty.k[l](b, 0, m, c) = static_cast<S>(kNaN);
          }
        }
      }
      for (int64_t t = spec.lengths[b]; t < spec.tokens; ++t) {
        for (int c = 0; c < spec.value_size; ++c) {
          dirty.v(b, 0, t, c) = static_cast<S>(kNaN);
          for (int64_t h = 0; h < spec.heads; ++h) dirty.dout(b, h, t, c) = static_cast<S>(kNaN);
        }
        for (int64_t h = 0; h < spec.heads; ++h) dirty.dlse(0, b, h, t) = static_cast<float>(kNaN);
      }
    }
    run(clean);
    run(dirty);
    each_result(dirty, clean, false, [](const std::string& name, const auto& got, const auto& want) {
      EXPECT_EQ(relative_error(got, want), 0.0) << name;
    });
    // Padding rows: zeros out, no log-sum-exp, zero gradients.
    for (int64_t t = spec.lengths[2]; t < spec.tokens; ++t) {
      EXPECT_EQ(dirty.out(2, 1, t, 0), 0.0f);
      EXPECT_EQ(dirty.lse(0, 2, 1, t), -kInf);
      EXPECT_EQ(dirty.dq[0](2, 1, t, 0), 0.0f);
      EXPECT_EQ(dirty.dv(2, 0, t, 0), 0.0f);
    }
  }
}

TEST_P(HktAbuse, NaNBeyondTheLengthsReachesNothing) {
  expect_padding_unread<float>();
  expect_padding_unread<BFloat16>();
}

// One NaN (or infinity) in a real token: the fused kernel is NaN exactly where the reference is, and right elsewhere.
// S: of the fused kernel; its results are within `tolerance` of the largest numbers, around 1.
template <class S>
void expect_nan_as_in_reference(double tolerance) {
  struct Spot {
    const char* name;
    std::function<double*(HktData<double>&)> where;
  };
  const std::vector<Spot> spots = {
      {"q", [](auto& d) { return &d.q[0](0, 0, 40, 1); }},    {"q1", [](auto& d) { return &d.q[1](0, 1, 20, 1); }},
      {"k", [](auto& d) { return &d.k[0](0, 0, 40, 1); }},    {"k2", [](auto& d) { return &d.k[2](0, 0, 17, 3); }},
      {"v", [](auto& d) { return &d.v(0, 0, 40, 1); }},       {"v_last", [](auto& d) { return &d.v(0, 0, 69, 0); }},
      {"dout", [](auto& d) { return &d.dout(0, 1, 40, 1); }},
  };
  for (BiasKind bias : {BiasKind::kNone, BiasKind::kMasking}) {
    const HktCase spec{"nan", 1, 2, 1, 70, 3, 8, 8, bias == BiasKind::kNone, {}, bias};
    for (const Spot& spot : spots) {
      for (double poison : {kNaN, kInf}) {
        HktData<double> exact(spec);
        *spot.where(exact) = poison;
        HktData<S> fused(spec);
        fused.copy_inputs_from(exact);
        exact.copy_inputs_from(fused);
        ASSERT_TRUE(hkt_forward_ref(exact.problem(), exact.outputs()).ok());
        ASSERT_TRUE(hkt_forward(fused.problem(), fused.outputs()).ok());
        int64_t poisoned = 0;
        exact.out.each([&](auto... at) {
          const double want = exact.out(at...), got = fused.out(at...);
          poisoned += std::isnan(want);
          // An infinite score leaves the row NaN, or the key with all or no weight: the same in both.
          EXPECT_TRUE(same(got, want) || std::abs(got - want) < tolerance) << spot.name << " " << got << " " << want;
        });
        if (!std::isnan(poison)) continue;
        EXPECT_EQ(poisoned > 0, std::string(spot.name) != "dout") << spot.name;
        ASSERT_TRUE(hkt_backward_ref(exact.problem(), exact.outputs(), exact.gradients()).ok());
        ASSERT_TRUE(hkt_backward(fused.problem(), fused.outputs(), fused.gradients()).ok());
        each_result(fused, exact, fused.has_bias(), [&](const std::string& name, const auto& got, const auto& want) {
          want.each([&](auto... at) {
            ASSERT_TRUE(same(got(at...), want(at...)) || std::abs(got(at...) - want(at...)) < 10 * tolerance)
                << "NaN in " << spot.name << ": " << name << " is " << got(at...) << ", the reference says "
                << want(at...);
          });
        });
      }
    }
  }
}

TEST_P(HktAbuse, NaNInARealTokenIsNeverHiddenAndNeverSpreads) {
  expect_nan_as_in_reference<double>(1e-12);
  expect_nan_as_in_reference<BFloat16>(0.05);
}

// A float score so far below the others that its weight underflows is exactly zero; huge scores do not overflow.
TEST_P(HktAbuse, ExtremeScoresAreExact) {
  const HktCase spec{"extreme", 1, 1, 1, 65, 1, 1, 1};
  HktData<float> d(spec);
  d.q[0].fill(1e4);
  d.k[0].fill(-1e4);
  d.k[0](0, 0, 64, 0) = 1e4f;
  d.weights.fill(1.0);
  ASSERT_TRUE(hkt_forward(d.problem(), d.outputs()).ok());
  for (int64_t i = 0; i < spec.tokens; ++i) EXPECT_EQ(d.out(0, 0, i, 0), d.v(0, 0, 64, 0));
}

TEST_P(HktAbuse, FullyMaskedRowsGiveZerosAndZeroGradients) {
  const HktCase spec{"masked", 1, 2, 2, 66, 3, 8, 8, false, {}, BiasKind::kMasking};  // row 5 sees no key
  HktData<float> d(spec);
  run(d);
  for (int64_t h = 0; h < spec.heads; ++h) {
    EXPECT_EQ(d.lse(0, 0, h, 5), -kInf);
    for (int c = 0; c < spec.value_size; ++c) EXPECT_EQ(d.out(0, h, 5, c), 0.0f);
    for (int c = 0; c < spec.head_size; ++c) EXPECT_EQ(d.dq[0](0, h, 5, c), 0.0f);
  }
  for (int64_t j = 0; j < spec.tokens; ++j) EXPECT_EQ(d.dbias(0, 0, 5, j), 0.0f);
}

TEST_P(HktAbuse, EmptyBatchAndNoTokens) {
  for (const HktCase& spec : {HktCase{"no_tokens", 2, 2, 1, 0, 3, 8, 8}, HktCase{"no_batch", 0, 2, 1, 5, 3, 8, 8}}) {
    HktData<float> d(spec);
    HktProblem problem = d.problem();
    problem.v.data = nullptr;  // an empty array may be null
    d.dweights.fill(7);
    ASSERT_TRUE(hkt_forward(problem, {}).ok());
    HktGradients gradients = d.gradients();
    ASSERT_TRUE(hkt_backward(problem, {}, gradients).ok());
    d.dweights.each([&](auto... at) { EXPECT_EQ(d.dweights(at...), 0.0f); });
  }
}

}  // namespace
}  // namespace strata::test
