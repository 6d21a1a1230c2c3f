// Streaming HSA on the GPU: the CPU's table of cases, against the float64 reference.
#include "cases/hkt_plain.h"
#include "cases/hsa_stream_decoder.h"
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

// `strata info` asks so, with or without a GPU.
TEST(HsaStreamCudaAbuse, KernelsAreKnownBeforeAProblemIsFilledIn) {
  HsaStreamProblem p;
  p.dtype = DType::kBFloat16;
  p.head_size = p.value_size = 64;
  const cuda::KernelChoice kernels = cuda::hsa_stream_kernels(p);
  EXPECT_EQ(kernels.forward, kernels.backward);
  EXPECT_EQ(cuda::hsa_stream_backward_workspace(p), 0u);  // of no tokens
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

TEST_P(HsaStreamCuda, CertificateEqualsTheCpu) {
  if (GetParam().is_packed()) return;  // refused
  auto expect_equal = [](auto storage, double tolerance) {
    using S = decltype(storage);
    StreamData<S> d(GetParam());
    const HsaStreamProblem p = d.problem();
    std::vector<typename TypeOf<S>::Compute> want(p.batch * p.heads * p.tokens), got(want.size());
    ASSERT_TRUE(hsa_stream_certificate(p, want.data()).ok());
    Mirror mirror;
    mirror.add(got.data(), got.size() * sizeof(got[0]));
    HsaStreamProblem there = on_gpu(d, mirror);
    const Status status = cuda::hsa_stream_certificate(
        there, mirror.translate(got.data()), mirror.scratch(cuda::hsa_stream_certificate_workspace(there)), nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_cuda(
        cudaMemcpy(got.data(), mirror.translate(got.data()), got.size() * sizeof(got[0]), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance * (1 + want[i])) << i;
  };
  expect_equal(double{}, 1e-12);
  expect_equal(BFloat16{}, 1e-5);
}

class HsaStreamCudaDecode : public testing::TestWithParam<StreamCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, HsaStreamCudaDecode,
    testing::Values(StreamCase{"near1", 2, 2, 300, 4, 8, 6, true, true, true},
                    StreamCase{"near2", 1, 3, 500, 16, 8, 6, true, true, true, Memory::kDense, 2},
                    StreamCase{"near3_binary", 1, 1, 200, 2, 40, 70, false, false, true, Memory::kDense, 3},
                    StreamCase{"levels_grouped", 2, 4, 400, 4, 8, 6, true, true, true, Memory::kDense, 2, 3, 2}),
    [](const auto& info) { return info.param.name; });

TEST_P(HsaStreamCudaDecode, StepsEqualTheParallelForm) {
  STRATA_NEEDS_GPU();
  StreamData<double> d(GetParam());
  HsaStreamProblem p = d.problem();
  p.weights = d.weights.view(), p.key_bias = d.key_bias.view();  // the decoder has all terms
  ASSERT_TRUE(hsa_stream_forward_ref(p, d.outputs()).ok());
  Decoder decoder(d);
  const StreamCase& c = d.spec;
  HsaStreamStep s = decoder.step(d);
  Mirror mirror;
  auto mirror_all = [&](auto&... arrays) { (mirror.add(arrays.data(), arrays.size() * sizeof(arrays[0])), ...); };
  mirror_all(decoder.keys, decoder.values, decoder.kappas, decoder.masses, decoder.lengths, decoder.out, decoder.q,
             decoder.k, decoder.v, decoder.weight, decoder.bias);
  mirror.add(d.positions), mirror.add(d.level_weights);
  std::vector<double>* const new_token[] = {&decoder.q, &decoder.k, &decoder.v, &decoder.weight, &decoder.bias};
  std::vector<void*> there;
  for (auto* array : new_token) there.push_back(mirror.translate(array->data()));
  s.lengths = mirror.translate(s.lengths);
  for (void** pointer : {&s.keys, &s.values, &s.kappas, &s.masses, &s.out})
    *pointer = mirror.translate(static_cast<char*>(*pointer));
  for (const void** pointer : {&s.q, &s.k, &s.v, &s.weight, &s.key_bias, &s.positions, &s.level_weights})
    *pointer = mirror.translate(static_cast<const char*>(*pointer));
  for (int64_t t = 0; t < c.tokens; ++t) {
    decoder.load(d, t);
    for (size_t x = 0; x < there.size(); ++x) {
      const size_t bytes = new_token[x]->size() * sizeof(double);
      expect_cuda(cudaMemcpy(there[x], new_token[x]->data(), bytes, cudaMemcpyHostToDevice));
    }
    const Status status = cuda::hsa_stream_step(s, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_cuda(cudaMemcpy(decoder.out.data(), s.out, decoder.out.size() * sizeof(double), cudaMemcpyDeviceToHost));
    for (int64_t row = 0; row < c.batch * c.heads; ++row)
      for (int x = 0; x < c.value_size; ++x)
        ASSERT_NEAR(decoder.out[row * c.value_size + x], d.out(row / c.heads, row % c.heads, t, x), 1e-11)
            << "token " << t;
  }
  // No room: the output says so and the cache stays as it is.
  s.capacity = 1;
  ASSERT_TRUE(cuda::hsa_stream_step(s, nullptr).ok());
  expect_cuda(cudaMemcpy(decoder.out.data(), s.out, sizeof(double), cudaMemcpyDeviceToHost));
  expect_cuda(cudaMemcpy(decoder.lengths.data(), s.lengths, sizeof(int64_t), cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::isnan(decoder.out[0]));
  EXPECT_EQ(decoder.lengths[0], c.tokens);
}

}  // namespace
}  // namespace strata::test
