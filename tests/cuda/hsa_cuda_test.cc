// HSA on the GPU: the same trees as on the CPU, against the float64 reference.
#include "cases/hkt_plain.h"
#include "cuda/hsa_on_gpu.h"

namespace strata::test {
namespace {

class HsaCuda : public testing::TestWithParam<HsaCase> {
 protected:
  void SetUp() override { STRATA_NEEDS_GPU(); }
  // Rows of the highest levels stand for most of a sequence, so what its tokens give them nearly cancels.
  template <class S>
  static void expect_close(double tolerance) {
    if (GetParam().levels > 5 && sizeof(S) == 2) tolerance *= 8;
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      HsaData<S> fused(GetParam(), seed);
      run_on_gpu(fused);
      HsaData<double> exact(GetParam(), seed);
      exact.copy_inputs_from(fused);
      ASSERT_TRUE(hsa_forward_ref(exact.problem(), exact.outputs()).ok());
      ASSERT_TRUE(hsa_backward_ref(exact.problem(), exact.gradients()).ok());
      each_hsa_result(fused, exact, [&](const char* name, const auto& got, const auto& want) {
        EXPECT_LT(relative_error(got, want), tolerance) << name << "\n" << fused.trees_text();
      });
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Cases, HsaCuda, testing::ValuesIn(hsa_gpu_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(HsaCuda, Float64EqualsReference) { expect_close<double>(1e-10); }
TEST_P(HsaCuda, Float32IsClose) { expect_close<float>(1e-5); }
TEST_P(HsaCuda, BFloat16IsClose) { expect_close<BFloat16>(1e-2); }
TEST_P(HsaCuda, Float16IsClose) { expect_close<Float16>(2e-3); }

TEST_P(HsaCuda, BFloat16OnChipsWithLessSharedMemory) {
  for (const int bytes : kSharedMemoryOfChips) {
    SCOPED_TRACE(bytes);
    const SharedMemoryLimit limit(bytes);
    expect_close<BFloat16>(1e-2);
  }
}

TEST_P(HsaCuda, SameBitsFromRunToRun) {
  auto expect_same = [](auto storage) {
    HsaData<decltype(storage)> one(GetParam()), two(GetParam());
    run_on_gpu(one);
    run_on_gpu(two);
    each_hsa_result(one, two, [&](const char* name, const auto& a, const auto& b) {
      EXPECT_EQ(std::memcmp(a.raw().data(), b.raw().data(), a.raw().size() * sizeof(a.raw()[0])), 0) << name;
    });
  };
  expect_same(float{});
  expect_same(BFloat16{});
}

TEST_P(HsaCuda, SameBitsInAGraph) {
  HsaData<BFloat16> one(GetParam()), two(GetParam());
  run_on_gpu(one);
  run_on_gpu(two, true);
  each_hsa_result(one, two, [&](const char* name, const auto& a, const auto& b) {
    EXPECT_EQ(std::memcmp(a.raw().data(), b.raw().data(), a.raw().size() * sizeof(a.raw()[0])), 0) << name;
  });
}

TEST(HsaCudaAbuse, AllWeightsZeroGivesZeros) {
  STRATA_NEEDS_GPU();
  HsaData<float> d({"zeros", {9, 4}, Shape::kRandom, 3, 2, 4, 4, Domain::kSet, true, true});
  for (int64_t t = 0; t < 9; ++t) d.weights(0, 0, t, 0) = 0;
  for (int64_t t = 9; t < 13; ++t) d.weights(0, 0, t, 0) = 1;
  for (int64_t t = 0; t < 9; ++t)  // padding may hold anything
    for (Array<float>* array : {&d.q[0], &d.k[0], &d.v, &d.dout}) (*array)(0, 0, t, 0) = std::nanf("");
  run_on_gpu(d);
  EXPECT_EQ(d.score(0, 0, 0, 0), -std::numeric_limits<float>::infinity());
  for (int64_t t = 0; t < 9; ++t) {
    for (Array<float>* array : {&d.out, &d.dq[0], &d.dk[0], &d.dv}) EXPECT_EQ((*array)(0, 0, t, 0), 0.0f);
    EXPECT_EQ(d.dweights(0, 0, t, 0), 0.0f);
  }
  EXPECT_TRUE(std::isfinite(d.out(0, 1, 10, 2)));
}

}  // namespace
}  // namespace strata::test
