// HSA on the GPU: the same trees as on the CPU, against the float64 reference.
#include "cases/hkt_plain.h"
#include "cases/hsa_cases.h"
#include "cuda/device.h"

namespace strata::test {
namespace {

template <class S>
void run_on_gpu(HsaData<S>& d) {
  Mirror mirror;
  for (Array<S>* array : {&d.q, &d.k, &d.v, &d.out, &d.dout, &d.dq, &d.dk, &d.dv}) mirror.add(*array);
  for (auto* array :
       {&d.weights, &d.dweights, &d.key_bias, &d.dkey_bias, &d.positions, &d.dpositions, &d.score, &d.dscore})
    mirror.add(*array);
  HsaProblem p = d.problem();
  HsaOutputs o = d.outputs();
  HsaGradients g = d.gradients();
  for (ConstView* view : {&p.q, &p.k, &p.v, &p.weights, &p.key_bias, &g.dout}) mirror.translate_view(*view);
  for (View* view : {&o.out, &g.dq, &g.dk, &g.dv, &g.dweights, &g.dkey_bias}) mirror.translate_view(*view);
  p.positions = mirror.translate(static_cast<const char*>(p.positions));
  o.score = mirror.translate(static_cast<char*>(o.score));
  g.dscore = mirror.translate(static_cast<const char*>(g.dscore));
  g.dpositions = mirror.translate(static_cast<char*>(g.dpositions));
  cuda::HsaPlan plan;
  ASSERT_TRUE(cuda::hsa_plan(p, &plan).ok());
  mirror.add(plan.numbers.data(), plan.numbers.size() * sizeof(int32_t));
  const int32_t* numbers = mirror.translate(plan.numbers.data());
  const Status forward =
      cuda::hsa_forward(p, plan, numbers, o, mirror.scratch(cuda::hsa_forward_workspace(p, plan)), nullptr);
  ASSERT_TRUE(forward.ok()) << forward.message();
  const Status backward =
      cuda::hsa_backward(p, plan, numbers, g, mirror.scratch(cuda::hsa_backward_workspace(p, plan)), nullptr);
  ASSERT_TRUE(backward.ok()) << backward.message();
  expect_cuda(cudaDeviceSynchronize());
  for (Array<S>* array : {&d.out, &d.dq, &d.dk, &d.dv}) mirror.fetch(*array);
  for (auto* array : {&d.dweights, &d.dkey_bias, &d.dpositions, &d.score}) mirror.fetch(*array);
}

class HsaCuda : public testing::TestWithParam<HsaCase> {
 protected:
  void SetUp() override { STRATA_NEEDS_GPU(); }
  template <class S>
  static void expect_close(double tolerance) {
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
// What the table of the CPU has too little of: rows the tensor-core kernels take, with all terms.
std::vector<HsaCase> gpu_cases() {
  std::vector<HsaCase> cases = hsa_cases();
  cases.push_back({"gpu_balanced_long", {700, 33}, Shape::kBalanced, 16, 3, 64, 64});
  cases.push_back({"gpu_key_bias", {300, 17}, Shape::kBalanced, 16, 2, 64, 32, Domain::kSet, false, true});
  cases.push_back({"gpu_wide_heads", {100, 50}, Shape::kBalanced, 8, 2, 128, 96, Domain::kSet, false, true});
  cases.push_back({"gpu_weights", {120, 40}, Shape::kRandom, 7, 2, 32, 64, Domain::kSet, true, true});
  cases.push_back({"gpu_positions", {90, 31}, Shape::kBalanced, 9, 2, 16, 16, Domain::kSequence, true, true});
  cases.push_back({"gpu_causal", {200}, Shape::kBalanced, 16, 1, 64, 64, Domain::kSequence, false, true, true});
  cases.push_back({"gpu_padded", {64, 0, 20}, Shape::kRandom, 6, 2, 64, 64, Domain::kSet, false, false, false, false});
  cases.push_back({"gpu_one_family", {16, 9}, Shape::kStar, 1, 2, 64, 64});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, HsaCuda, testing::ValuesIn(gpu_cases()),
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
  HsaData<float> one(GetParam()), two(GetParam());
  run_on_gpu(one);
  run_on_gpu(two);
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
    for (Array<float>* array : {&d.q, &d.k, &d.v, &d.dout}) (*array)(0, 0, t, 0) = std::nanf("");
  run_on_gpu(d);
  EXPECT_EQ(d.score(0, 0, 0, 0), -std::numeric_limits<float>::infinity());
  for (int64_t t = 0; t < 9; ++t) {
    for (Array<float>* array : {&d.out, &d.dq, &d.dk, &d.dv}) EXPECT_EQ((*array)(0, 0, t, 0), 0.0f);
    EXPECT_EQ(d.dweights(0, 0, t, 0), 0.0f);
  }
  EXPECT_TRUE(std::isfinite(d.out(0, 1, 10, 2)));
}

}  // namespace
}  // namespace strata::test
