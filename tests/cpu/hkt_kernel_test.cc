// The fused kernels against the reference: every case x precision x instruction set of this host.
#include <gtest/gtest.h>

#include "cases/hkt_plain.h"
#include "cases/isas.h"

namespace strata::test {
namespace {

struct KernelCase {
  HktCase spec;
  Isa isa;
};
std::ostream& operator<<(std::ostream& out, const KernelCase& c) { return out << c.spec << " on " << isa_name(c.isa); }

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  for (const HktCase& spec : hkt_cases())
    for (Isa isa : tested_isas()) cases.push_back({spec, isa});
  return cases;
}

class HktKernel : public testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    before_ = current_isa();
    ASSERT_TRUE(set_isa(GetParam().isa).ok());
  }
  void TearDown() override { ASSERT_TRUE(set_isa(before_).ok()); }

  template <class S>
  static void run(HktData<S>& d, int threads = 2) {
    const Status forward = hkt_forward(d.problem(threads), d.outputs());
    ASSERT_TRUE(forward.ok()) << forward.message();
    const Status backward = hkt_backward(d.problem(threads), d.outputs(), d.gradients());
    ASSERT_TRUE(backward.ok()) << backward.message();
  }

  // Error of the fused kernel <= factor x error of a direct computation in S, plus a few roundings.
  template <class S>
  static void expect_as_good_as_plain(double factor, double rounding) {
    HktData<S> fused(GetParam().spec);
    run(fused);
    HktData<double> exact(GetParam().spec);
    exact.copy_inputs_from(fused);
    ASSERT_TRUE(hkt_forward_ref(exact.problem(), exact.outputs()).ok());
    ASSERT_TRUE(hkt_backward_ref(exact.problem(), exact.outputs(), exact.gradients()).ok());
    const PlainHkt<S> plain(fused);

    std::vector<double> allowed;
    each_result(plain, exact, fused.has_bias(), [&](const std::string&, const auto& got, const auto& want) {
      allowed.push_back(factor * relative_error(got, want) + rounding);
    });
    size_t at = 0;
    each_result(fused, exact, fused.has_bias(), [&](const std::string& name, const auto& got, const auto& want) {
      EXPECT_LE(relative_error(got, want), allowed[at++])
          << name << "\nrepeat with: core_test --gtest_filter='*" << GetParam().spec.name << "_"
          << isa_name(GetParam().isa) << "'";
    });
  }

  template <class S>
  static void expect_same_bits() {
    auto bits = [](const auto& array) {
      const auto& raw = array.raw();
      return std::string(reinterpret_cast<const char*>(raw.data()), raw.size() * sizeof(raw[0]));
    };
    HktData<S> one(GetParam().spec);
    run(one, 1);
    for (int threads : {1, 2, 3, 8}) {
      HktData<S> many(GetParam().spec);
      run(many, threads);
      each_result(many, one, one.has_bias(), [&](const std::string& name, const auto& got, const auto& want) {
        EXPECT_TRUE(bits(got) == bits(want)) << name << " at " << threads << " threads";
      });
    }
  }

 private:
  Isa before_ = Isa::kPortable;
};
INSTANTIATE_TEST_SUITE_P(Cases, HktKernel, testing::ValuesIn(kernel_cases()),
                         [](const auto& info) { return info.param.spec.name + "_" + isa_name(info.param.isa); });

TEST_P(HktKernel, Float64EqualsReference) {
  if (!is_for_bfloat16(GetParam().isa)) expect_as_good_as_plain<double>(4, 1e-14);
}
TEST_P(HktKernel, Float32IsAsGoodAsPlainFloat32) {
  if (!is_for_bfloat16(GetParam().isa)) expect_as_good_as_plain<float>(4, 4e-7);
}
// Products of bfloat16 round P and dS, as those of tensor cores do, and have the same tolerance.
TEST_P(HktKernel, BFloat16IsWithinTwiceOfPlainBFloat16) {
  expect_as_good_as_plain<BFloat16>(2, is_for_bfloat16(GetParam().isa) ? 5e-3 : 1e-5);
}

TEST_P(HktKernel, SameBitsAtAnyThreadCountAndFromRunToRun) {
  expect_same_bits<BFloat16>();
  if (!is_for_bfloat16(GetParam().isa)) expect_same_bits<float>();
}

// Every number of rows up to two tiles, with channels that fill no vector, no pair and no tile.
TEST(HktPairs, AnyNumberOfTokensEqualsFloat32Arithmetic) {
  const Isa before = current_isa();
  for (const Isa isa : tested_isas()) {
    if (!is_for_bfloat16(isa)) continue;
    for (int64_t tokens = 1; tokens <= 130; ++tokens) {
      const HktCase spec{"tokens", 1, 2, 1, tokens, 1 + static_cast<int>(tokens % 4), 9, 33, tokens % 2 == 0};
      HktData<BFloat16> pairs(spec, tokens), single(spec, tokens);
      for (HktData<BFloat16>* d : {&pairs, &single}) {
        ASSERT_TRUE(set_isa(d == &pairs ? isa : Isa::kPortable).ok());
        ASSERT_TRUE(hkt_forward(d->problem(), d->outputs()).ok());
        ASSERT_TRUE(hkt_backward(d->problem(), d->outputs(), d->gradients()).ok());
      }
      each_result(pairs, single, false, [&](const std::string& name, const auto& got, const auto& want) {
        if (name == "dweights") return;  // sums that nearly cancel
        EXPECT_LT(relative_error(got, want), 0.03) << name << " of " << tokens << " tokens on " << isa_name(isa);
      });
    }
  }
  ASSERT_TRUE(set_isa(before).ok());
}

// The kernels of pairs subtract the same number from the scores of many tiles. Here the scores of the second half of
// the keys are some 2^-100 or 2^100 times those of the first, there are more keys than a block has, and one level
// counts for nothing.
TEST(HktPairs, ScoresThatFallOrRiseWithTheKeysEqualFloat32Arithmetic) {
  const Isa before = current_isa();
  for (const Isa isa : tested_isas()) {
    if (!is_for_bfloat16(isa)) continue;
    for (const float slope : {-0.03f, 0.03f}) {
      const HktCase spec{"slope", 1, 1, 1, 2200, 3, 8, 8, false};
      HktData<BFloat16> pairs(spec), single(spec);
      for (HktData<BFloat16>* d : {&pairs, &single}) {
        d->weights(0, 0, 0, 0) = 1.0f;
        d->weights(0, 0, 0, 1) = d->weights(0, 0, 0, 2) = 0.0f;
        for (int64_t t = 0; t < spec.tokens; ++t) {
          d->q[0](0, 0, t, 0) = BFloat16(8.0f);
          d->k[0](0, 0, t, 0) = BFloat16(slope * static_cast<float>(t));
        }
        ASSERT_TRUE(set_isa(d == &pairs ? isa : Isa::kPortable).ok());
        ASSERT_TRUE(hkt_forward(d->problem(), d->outputs()).ok());
      }
      EXPECT_LT(relative_error(pairs.out, single.out), 0.01) << slope << " on " << isa_name(isa);
      EXPECT_LT(relative_error(pairs.lse, single.lse), 1e-5) << slope << " on " << isa_name(isa);
    }
  }
  ASSERT_TRUE(set_isa(before).ok());
}

TEST(HktSubsumption, OneHotWeightsAreFlatAttention) {
  HktCase spec{"one_hot", 2, 2, 2, 100, 3, 16, 16, true};
  HktData<float> d(spec);
  d.weights.fill(0);
  for (int64_t h = 0; h < spec.heads; ++h) d.weights(0, 0, h, 0) = 1.0f;
  ASSERT_TRUE(hkt_forward(d.problem(), d.outputs()).ok());

  HktCase flat = spec;
  flat.levels = 1;
  HktData<float> f(flat);
  f.q[0].copy_from(d.q[0]);
  f.k[0].copy_from(d.k[0]);
  f.v.copy_from(d.v);
  ASSERT_TRUE(hkt_forward(f.problem(), f.outputs()).ok());
  EXPECT_EQ(relative_error(d.out, f.out), 0.0);
  EXPECT_EQ(relative_error(d.lse, f.lse), 0.0);
}

// The kernels with bfloat16 products leave weights of zero to those of float32.
TEST(HktPairs, WeightsOfZeroAreFlatAttention) {
  const Isa before = current_isa();
  const HktCase spec{"one_hot", 1, 2, 2, 100, 3, 16, 16, true};
  for (const Isa isa : tested_isas()) {
    ASSERT_TRUE(set_isa(isa).ok());
    HktData<BFloat16> d(spec), flat(changed(spec, [](HktCase&c) { c.levels = 1; }));
    d.weights.fill(0);
    for (int64_t h = 0; h < spec.heads; ++h) d.weights(0, 0, h, 0) = 1.0f;
    flat.q[0].copy_from(d.q[0]);
    flat.k[0].copy_from(d.k[0]);
    flat.v.copy_from(d.v);
    ASSERT_TRUE(hkt_forward(d.problem(), d.outputs()).ok());
    ASSERT_TRUE(hkt_forward(flat.problem(), flat.outputs()).ok());
    EXPECT_LT(relative_error(d.out, flat.out), 1e-2) << isa_name(isa);
    EXPECT_LT(relative_error(d.lse, flat.lse), 1e-5) << isa_name(isa);
  }
  ASSERT_TRUE(set_isa(before).ok());
}

}  // namespace
}  // namespace strata::test
