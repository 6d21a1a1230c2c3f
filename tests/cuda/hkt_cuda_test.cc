// HKT on the GPU: the same table of cases as on the CPU, against the float64 reference.
#include "cases/hkt_plain.h"
#include "cuda/hkt_on_gpu.h"

namespace strata::test {
namespace {

// Error of the kernel <= factor x error of the same mathematics done plainly in S, plus a few roundings.
template <class S>
void expect_as_good_as_plain(const HktCase& spec, double factor, double rounding) {
  HktData<S> fused(spec);
  run_on_gpu(fused);
  HktData<double> exact(spec);
  exact.copy_inputs_from(fused);
  ASSERT_TRUE(hkt_forward_ref(exact.problem(), exact.outputs()).ok());
  ASSERT_TRUE(hkt_backward_ref(exact.problem(), exact.outputs(), exact.gradients()).ok());
  const PlainHkt<S> plain(fused);
  std::vector<double> allowed;
  const bool with_bias = spec.bias == BiasKind::kFull;
  each_result(plain, exact, with_bias, [&](const std::string&, const auto& got, const auto& want) {
    allowed.push_back(factor * relative_error(got, want) + rounding);
  });
  size_t at = 0;
  each_result(fused, exact, with_bias, [&](const std::string& name, const auto& got, const auto& want) {
    EXPECT_LE(relative_error(got, want), allowed[at++]) << name << " of " << spec.name;
  });
}

// The backward of the sm_90 kernels computes every score once, or for keys and for queries; by itself it does what is
// faster.
struct ScoresOnce {
  explicit ScoresOnce(bool once) { cuda::score_once_from(once ? 0 : std::numeric_limits<int64_t>::max()); }
  ~ScoresOnce() { cuda::score_once_from(-1); }
};

class HktCuda : public testing::TestWithParam<HktCase> {
 protected:
  void SetUp() override { STRATA_NEEDS_GPU(); }
};
INSTANTIATE_TEST_SUITE_P(Cases, HktCuda, testing::ValuesIn(hkt_gpu_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(HktCuda, BFloat16OnTheKernelsOfEveryChip) {
  cuda::set_kernels(cuda::Kernels::kMma);
  expect_as_good_as_plain<BFloat16>(GetParam(), 2, 5e-3);
  cuda::set_kernels(cuda::Kernels::kSm90);
}

// Tensor cores take P and dS rounded to S, which in the smallest cases is all the error there is: a rounding or two.
TEST_P(HktCuda, BFloat16IsWithinTwiceOfPlainBFloat16) {
  for (const bool once : {false, true}) {
    SCOPED_TRACE(once);
    const ScoresOnce scores(once);
    expect_as_good_as_plain<BFloat16>(GetParam(), 2, 5e-3);
  }
}
TEST_P(HktCuda, Float16IsWithinTwiceOfPlainFloat16) {
  for (const bool once : {false, true}) {
    SCOPED_TRACE(once);
    const ScoresOnce scores(once);
    expect_as_good_as_plain<Float16>(GetParam(), 2, 1.3e-3);
  }
}
TEST_P(HktCuda, Float32IsAsGoodAsPlainFloat32) { expect_as_good_as_plain<float>(GetParam(), 4, 1e-6); }
TEST_P(HktCuda, Float64EqualsReference) { expect_as_good_as_plain<double>(GetParam(), 4, 1e-13); }

TEST_P(HktCuda, BFloat16OnChipsWithLessSharedMemory) {
  for (const int bytes : kSharedMemoryOfChips) {
    SCOPED_TRACE(bytes);
    const SharedMemoryLimit limit(bytes);
    expect_as_good_as_plain<BFloat16>(GetParam(), 2, 5e-3);
  }
}

bool on_tensor_cores(const HktProblem& p) {
  const cuda::KernelChoice kernels = cuda::hkt_kernels(p);
  return kernels.forward != cuda::Kernels::kSimt && kernels.backward != cuda::Kernels::kSimt;
}

// What fits by arithmetic, on the chips of kSharedMemoryOfChips.
TEST(HktCudaSharedMemory, ChoosesTensorCoresWhereTilesFit) {
  STRATA_NEEDS_GPU();
  struct Shape {
    int levels, head_size;
    bool on_chip[3];
  };
  for (const Shape& shape :
       {Shape{5, 64, {true, true, false}}, Shape{1, 128, {true, true, false}}, Shape{3, 128, {true, true, false}},
        Shape{4, 128, {true, true, false}}, Shape{5, 128, {true, false, false}}, Shape{1, 256, {true, false, false}},
        Shape{3, 256, {true, false, false}}, Shape{5, 256, {false, false, false}}}) {
    const HktData<BFloat16> d({"fits", 1, 1, 1, 64, shape.levels, shape.head_size, shape.head_size, true});
    EXPECT_TRUE(on_tensor_cores(d.problem())) << shape.levels << " levels, " << shape.head_size;
    for (int chip = 0; chip < 3; ++chip) {
      const SharedMemoryLimit limit(kSharedMemoryOfChips[chip]);
      EXPECT_EQ(on_tensor_cores(d.problem()), shape.on_chip[chip])
          << shape.levels << " levels, " << shape.head_size << " channels, " << kSharedMemoryOfChips[chip] << " bytes";
    }
  }
}

TEST_P(HktCuda, SameBitsFromRunToRun) {
  for (const bool once : {false, true}) {
    SCOPED_TRACE(once);
    const ScoresOnce scores(once);
    HktData<BFloat16> one(GetParam()), two(GetParam());
    run_on_gpu(one);
    run_on_gpu(two);
    each_result(
        one, two, GetParam().bias == BiasKind::kFull, [&](const std::string& name, const auto& a, const auto& b) {
          EXPECT_EQ(std::memcmp(a.raw().data(), b.raw().data(), a.raw().size() * sizeof(a.raw()[0])), 0) << name;
        });
  }
}

TEST(HktCudaWeights, ZeroAndOneHotWeights) {
  STRATA_NEEDS_GPU();
  for (const int hot : {0, 1, 2}) {
    HktData<BFloat16> d({"one_hot", 1, 2, 2, 150, 3, 32, 32, true});
    d.weights.fill(0);
    for (int64_t h = 0; h < 2; ++h) d.weights(0, 0, h, hot) = 1.0f;
    HktData<double> exact(d.spec);
    exact.copy_inputs_from(d);
    run_on_gpu(d);
    ASSERT_TRUE(hkt_forward_ref(exact.problem(), exact.outputs()).ok());
    ASSERT_TRUE(hkt_backward_ref(exact.problem(), exact.outputs(), exact.gradients()).ok());
    EXPECT_LT(relative_error(d.out, exact.out), 1e-2) << hot;
    EXPECT_LT(relative_error(d.dweights, exact.dweights), 2e-2) << hot;
  }
}

TEST(HktCudaNan, PaddingMayHoldAnything) {
  STRATA_NEEDS_GPU();
  const HktCase spec{"nan", 2, 2, 2, 140, 3, 64, 64, false, {70, 140}};
  for (const bool once : {false, true}) {
    SCOPED_TRACE(once);
    const ScoresOnce scores(once);
    HktData<BFloat16> clean(spec), dirty(spec);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (int64_t t = 70; t < 140; ++t) {
      for (Array<BFloat16>* array : {&dirty.q[0], &dirty.k[0], &dirty.v, &dirty.dout})
        (*array)(0, 1, t, 3) = BFloat16(nan);
    }
    run_on_gpu(clean);
    run_on_gpu(dirty);
    each_result(dirty, clean, false, [&](const std::string& name, const auto& got, const auto& want) {
      EXPECT_EQ(relative_error(got, want), 0.0) << name;
    });
  }
}

// What is not finite shows in dq of the rows that see it, and in no row of an earlier tile.
TEST(HktCudaNan, WhatIsSeenShows) {
  STRATA_NEEDS_GPU();
  const HktCase spec{"seen", 1, 2, 2, 400, 3, 64, 64, true};
  for (const bool once : {false, true}) {
    for (const bool in_keys : {false, true}) {
      SCOPED_TRACE(testing::Message() << (once ? "once" : "twice") << (in_keys ? ", keys" : ", values"));
      const ScoresOnce scores(once);
      HktData<BFloat16> clean(spec), dirty(spec);
      (in_keys ? dirty.k[0] : dirty.v)(0, 1, 300, 3) = BFloat16(std::numeric_limits<double>::infinity());
      run_on_gpu(clean);
      run_on_gpu(dirty);
      for (int64_t t = 0; t < 128; ++t) {
        EXPECT_EQ(static_cast<double>(dirty.dq[0](0, 1, t, 3)), static_cast<double>(clean.dq[0](0, 1, t, 3))) << t;
      }
      for (int64_t t = 300; t < 400; ++t) {
        EXPECT_FALSE(std::isfinite(static_cast<double>(dirty.dq[0](0, 1, t, 3)))) << t;
        EXPECT_TRUE(std::isfinite(static_cast<double>(dirty.dq[0](0, 0, t, 3)))) << t;
      }
    }
  }
}

TEST(HktCudaErrors, MistakesAreNamed) {
  STRATA_NEEDS_GPU();
  HktData<float> d({"errors", 2, 2, 2, 8, 2, 4, 4, false, {}, BiasKind::kShared});
  HktProblem p = d.problem();
  EXPECT_NE(cuda::hkt_backward(p, d.outputs(), d.gradients(), &p, nullptr).message().find("broadcasts"),
            std::string::npos);
  p.batch = 70000;
  EXPECT_NE(cuda::hkt_forward(p, d.outputs(), nullptr).message().find("at most 65535"), std::string::npos);
  p = d.problem();
  p.levels = 9;
  EXPECT_NE(cuda::hkt_forward(p, d.outputs(), nullptr).message().find("levels: expected 1 to 8"), std::string::npos);
  p = d.problem();
  p.v.data = nullptr;
  EXPECT_NE(cuda::hkt_forward(p, d.outputs(), nullptr).message().find("v: expected a pointer"), std::string::npos);
}

}  // namespace
}  // namespace strata::test
