// Streaming HSA on the GPU: the CPU's table of cases, against the float64 reference.
#include "cases/hkt_plain.h"
#include "cuda/hsa_stream_on_gpu.h"

namespace strata::test {
namespace {

class HsaStreamCuda : public testing::TestWithParam<StreamCase> {
 protected:
  void SetUp() override { STRATA_NEEDS_GPU(); }
  template <class S>
  static void expect_close(double tolerance) {
    StreamData<S> fused(GetParam());
    run_on_gpu(fused);
    StreamData<double> exact(GetParam());
    exact.copy_inputs_from(fused);
    ASSERT_TRUE(hsa_stream_forward_ref(exact.problem(), exact.outputs()).ok());
    ASSERT_TRUE(hsa_stream_backward_ref(exact.problem(), exact.outputs(), exact.gradients()).ok());
    fused.each_result(exact, [&](const char* name, const auto& got, const auto& want) {
      EXPECT_LT(relative_error(got, want), tolerance) << name;
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Cases, HsaStreamCuda, testing::ValuesIn(stream_gpu_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(HsaStreamCuda, Float64EqualsReference) { expect_close<double>(1e-9); }  // positions are summed in fixed point
TEST_P(HsaStreamCuda, Float32IsClose) { expect_close<float>(1e-5); }
TEST_P(HsaStreamCuda, BFloat16IsClose) { expect_close<BFloat16>(2e-2); }
TEST_P(HsaStreamCuda, Float16IsClose) { expect_close<Float16>(4e-3); }
TEST_P(HsaStreamCuda, BFloat16IsCloseWithoutTensorCores) {
  cuda::set_kernels(cuda::Kernels::kSimt);
  expect_close<BFloat16>(2e-2);
  cuda::set_kernels(cuda::Kernels::kSm90);
}

TEST_P(HsaStreamCuda, BFloat16OnChipsWithLessSharedMemory) {
  for (const int bytes : kSharedMemoryOfChips) {
    SCOPED_TRACE(bytes);
    const SharedMemoryLimit limit(bytes);
    expect_close<BFloat16>(2e-2);
  }
}

TEST_P(HsaStreamCuda, SameBitsFromRunToRun) {
  StreamData<BFloat16> one(GetParam()), two(GetParam());
  run_on_gpu(one);
  run_on_gpu(two);
  one.each_result(two, [&](const char* name, const auto& a, const auto& b) {
    EXPECT_EQ(std::memcmp(a.raw().data(), b.raw().data(), a.raw().size() * sizeof(a.raw()[0])), 0) << name;
  });
}

TEST(HsaStreamCudaAbuse, HiddenKeysMayHoldAnything) {
  STRATA_NEEDS_GPU();
  StreamData<BFloat16> clean({"nan", 1, 2, 200, 16, 64, 64, true}), dirty(clean.spec);
  for (int64_t t = 0; t < 200; ++t) {
    if (clean.weights(0, 0, t, 0) != 0) continue;
    dirty.k[0](0, 1, t, 3) = BFloat16(std::nan(""));
    dirty.v(0, 0, t, 5) = BFloat16(std::nan(""));
  }
  run_on_gpu(clean);
  run_on_gpu(dirty);
  dirty.each_result(clean, [&](const char* name, const auto& got, const auto& want) {
    EXPECT_EQ(relative_error(got, want), 0.0) << name;
  });
}

TEST(HsaStreamCudaDecode, StepsEqualTheParallelForm) {
  STRATA_NEEDS_GPU();
  const StreamCase spec{"decode", 2, 2, 300, 4, 8, 6, true, true, true};
  StreamData<double> d(spec);
  ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
  const int64_t capacity = hsa_stream_heights(spec.tokens, 4), rows = 2 * 2 * capacity * 4;
  std::vector<double> keys(rows * 8), values(rows * 6), kappas(rows), masses(2 * capacity * 4), out(4 * 6);
  std::vector<int64_t> lengths(2, 0);
  Mirror mirror;
  for (auto* array : {&keys, &values, &kappas, &masses, &out})
    mirror.add(array->data(), array->size() * sizeof(double));
  mirror.add(lengths.data(), lengths.size() * sizeof(int64_t));
  mirror.add(d.positions);
  HsaStreamStep s;
  s.dtype = DType::kFloat64;
  s.batch = s.heads = s.key_heads = 2, s.branching = 4, s.head_size = 8, s.value_size = 6, s.capacity = capacity;
  s.positions = mirror.translate(d.positions.data()), s.heights = d.heights, s.scale = 0.7;
  s.keys = mirror.translate(keys.data()), s.values = mirror.translate(values.data());
  s.kappas = mirror.translate(kappas.data()), s.masses = mirror.translate(masses.data());
  s.lengths = mirror.translate(lengths.data()), s.out = mirror.translate(out.data());
  // The tokens of one step, dense: q, k, v, key_bias, weight.
  std::vector<double> token(4 * 8 + 4 * 8 + 4 * 6 + 4 + 2);
  auto* there = static_cast<double*>(mirror.scratch(token.size() * sizeof(double)));
  s.q = there, s.k = there + 32, s.v = there + 64, s.key_bias = there + 88, s.weight = there + 92;
  for (int64_t t = 0; t < spec.tokens; ++t) {
    for (int64_t bh = 0; bh < 4; ++bh) {
      for (int c = 0; c < 8; ++c) token[bh * 8 + c] = d.q[0](bh / 2, bh % 2, t, c);
      for (int c = 0; c < 8; ++c) token[32 + bh * 8 + c] = d.k[0](bh / 2, bh % 2, t, c);
      for (int c = 0; c < 6; ++c) token[64 + bh * 6 + c] = d.v(bh / 2, bh % 2, t, c);
      token[88 + bh] = d.key_bias(bh / 2, bh % 2, t, 0);
      token[92 + bh / 2] = d.weights(bh / 2, 0, t, 0);
    }
    expect_cuda(cudaMemcpy(there, token.data(), token.size() * sizeof(double), cudaMemcpyHostToDevice));
    const Status status = cuda::hsa_stream_step(s, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_cuda(cudaMemcpy(out.data(), s.out, out.size() * sizeof(double), cudaMemcpyDeviceToHost));
    for (int64_t bh = 0; bh < 4; ++bh)
      for (int c = 0; c < 6; ++c) ASSERT_NEAR(out[bh * 6 + c], d.out(bh / 2, bh % 2, t, c), 1e-11) << "token " << t;
  }
  // No room: the output says so and the cache stays as it is.
  s.capacity = 1;
  ASSERT_TRUE(cuda::hsa_stream_step(s, nullptr).ok());
  expect_cuda(cudaMemcpy(out.data(), s.out, out.size() * sizeof(double), cudaMemcpyDeviceToHost));
  expect_cuda(cudaMemcpy(lengths.data(), s.lengths, sizeof(int64_t) * 2, cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(lengths[0], spec.tokens);
}

}  // namespace
}  // namespace strata::test
