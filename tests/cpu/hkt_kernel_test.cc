// The fused kernels against the reference: every case x precision x instruction set of this host.
#include <gtest/gtest.h>

#include "cases/hkt_plain.h"
#include "strata/cpu.h"

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
    for (Isa isa : supported_isas()) cases.push_back({spec, isa});
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

 private:
  Isa before_ = Isa::kPortable;
};
INSTANTIATE_TEST_SUITE_P(Cases, HktKernel, testing::ValuesIn(kernel_cases()),
                         [](const auto& info) { return info.param.spec.name + "_" + isa_name(info.param.isa); });

TEST_P(HktKernel, Float64EqualsReference) { expect_as_good_as_plain<double>(4, 1e-14); }
TEST_P(HktKernel, Float32IsAsGoodAsPlainFloat32) { expect_as_good_as_plain<float>(4, 4e-7); }
TEST_P(HktKernel, BFloat16IsWithinTwiceOfPlainBFloat16) { expect_as_good_as_plain<BFloat16>(2, 1e-5); }

TEST_P(HktKernel, SameBitsAtAnyThreadCountAndFromRunToRun) {
  auto bits = [](const auto& array) {
    const auto& raw = array.raw();
    return std::string(reinterpret_cast<const char*>(raw.data()), raw.size() * sizeof(raw[0]));
  };
  HktData<float> one(GetParam().spec);
  run(one, 1);
  for (int threads : {1, 2, 3, 8}) {
    HktData<float> many(GetParam().spec);
    run(many, threads);
    each_result(many, one, one.has_bias(), [&](const std::string& name, const auto& got, const auto& want) {
      EXPECT_TRUE(bits(got) == bits(want)) << name << " at " << threads << " threads";
    });
  }
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

TEST(HktDecodeKernel, EqualsTheLastRowOfTheCausalForward) {
  const HktCase spec{"decode", 3, 4, 2, 83, 4, 12, 10, true, {83, 1, 46}};
  for (Isa isa : supported_isas()) {
    ASSERT_TRUE(set_isa(isa).ok());
    HktData<float> d(spec);
    ASSERT_TRUE(hkt_forward(d.problem(), d.outputs()).ok());
    HktDecode step;
    step.batch = spec.batch;
    step.heads = spec.heads;
    step.key_heads = spec.key_heads;
    step.levels = spec.levels;
    step.head_size = spec.head_size;
    step.value_size = spec.value_size;
    step.scale = d.problem().scale;
    step.weights = d.weights.data();
    step.lengths = spec.lengths.data();
    step.v = d.v.const_view();
    std::vector<Array<float>> current;
    for (int l = 0; l < spec.levels; ++l) {
      current.emplace_back(spec.batch, spec.heads, 1, spec.head_size);
      current[l].each([&](int64_t b, int64_t h, int64_t, int64_t c) {
        current[l](b, h, 0, c) = static_cast<float>(d.q[l](b, h, (spec.lengths[b] - 1) >> l, c));
      });
      step.q[l] = current[l].const_view();
      step.k[l] = d.k[l].const_view();
    }
    Array<float> out(spec.batch, spec.heads, 1, spec.value_size);
    step.out = out.view();
    ASSERT_TRUE(hkt_decode(step).ok());
    out.each([&](int64_t b, int64_t h, int64_t, int64_t c) {
      EXPECT_NEAR(out(b, h, 0, c), d.out(b, h, spec.lengths[b] - 1, c), 2e-6) << isa_name(isa);
    });
  }
}

}  // namespace
}  // namespace strata::test
