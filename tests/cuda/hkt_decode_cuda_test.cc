// Decoding steps of HKT on the GPU: the CPU's table of cases, against the float64 reference.
#include "cases/hkt_decode_case.h"
#include "cases/hkt_plain.h"
#include "cases/pyramid_steps.h"
#include "cuda/device.h"

namespace strata::test {
namespace {

template <class S>
void run_on_gpu(DecodeData<S>& data) {
  Mirror mirror;
  for (auto* arrays : {&data.q, &data.k})
    for (Array<S>& array : *arrays) mirror.add(array);
  mirror.add(data.v), mirror.add(data.out), mirror.add(data.all.weights);
  mirror.add(data.spec.lengths.data(), data.spec.lengths.size() * sizeof(int64_t));
  HktDecode d = data.step();
  for (int l = 0; l < d.levels; ++l) mirror.translate_view(d.q[l]), mirror.translate_view(d.k[l]);
  mirror.translate_view(d.v), mirror.translate_view(d.out);
  d.weights = mirror.translate(static_cast<const char*>(d.weights));
  d.lengths = mirror.translate(d.lengths);
  const Status status = cuda::hkt_decode(d, mirror.scratch(cuda::hkt_decode_workspace(d)), nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  expect_cuda(cudaDeviceSynchronize());
  mirror.fetch(data.out);
}

class HktDecodeCuda : public testing::TestWithParam<DecodeCase> {
 protected:
  void SetUp() override { STRATA_NEEDS_GPU(); }
  template <class S>
  static void expect_close(double tolerance) {
    DecodeData<S> d(GetParam());
    run_on_gpu(d);
    EXPECT_LT(relative_error(d.out, d.expected()), tolerance);
  }
};
std::vector<DecodeCase> gpu_cases() {
  std::vector<DecodeCase> cases = hkt_decode_cases();
  cases.push_back({"gpu_many_splits", 2, 2, 3, 64, 64, {20000, 7, 12345}});
  cases.push_back({"gpu_many_splits_grouped", 8, 2, 2, 128, 128, {9000, 1}});
  cases.push_back({"gpu_long_window", 4, 4, 3, 64, 64, {20000, 3000}, 6000, 5});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, HktDecodeCuda, testing::ValuesIn(gpu_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(HktDecodeCuda, Float64EqualsTheReference) { expect_close<double>(1e-12); }
TEST_P(HktDecodeCuda, Float32IsClose) { expect_close<float>(1e-5); }
TEST_P(HktDecodeCuda, BFloat16IsClose) { expect_close<BFloat16>(1e-2); }
TEST_P(HktDecodeCuda, Float16IsClose) { expect_close<Float16>(2e-3); }

TEST_P(HktDecodeCuda, SameBitsFromRunToRun) {
  DecodeData<BFloat16> one(GetParam()), two(GetParam());
  run_on_gpu(one);
  run_on_gpu(two);
  EXPECT_EQ(std::memcmp(one.out.raw().data(), two.out.raw().data(), one.out.raw().size() * sizeof(BFloat16)), 0);
}

TEST(HktDecodeCudaNan, StaysInItsSequenceAndHead) {
  STRATA_NEEDS_GPU();
  DecodeData<BFloat16> clean({"nan", 4, 2, 3, 64, 64, {300, 200}}), dirty(clean.spec);
  dirty.k[1](0, 1, 17, 5) = BFloat16(std::nan(""));
  run_on_gpu(clean);
  run_on_gpu(dirty);
  dirty.out.each([&](int64_t b, int64_t h, int64_t, int64_t c) {
    const double got = static_cast<const Array<BFloat16>&>(dirty.out)(b, h, 0, c);
    if (b == 0 && h >= 2) {
      EXPECT_TRUE(std::isnan(got));
    } else {
      EXPECT_EQ(got, static_cast<const Array<BFloat16>&>(clean.out)(b, h, 0, c));
    }
  });
}

TEST_P(HktDecodeCuda, TokensAppendedOneByOneMakeTheCache) {
  if (GetParam().lengths[0] > 1100) return;  // many small copies
  DecodeData<float> want(GetParam()), got(GetParam());
  RowsOfTokens<float> rows(got);
  Mirror mirror;
  for (auto* arrays : {&got.q, &got.k, &got.all.q, &got.all.k})
    for (Array<float>& array : *arrays) mirror.add(array);
  mirror.add(got.v), mirror.add(got.all.v);
  std::vector<int64_t> times(1200);
  for (size_t t = 0; t < times.size(); ++t) times[t] = static_cast<int64_t>(t);
  mirror.add(times.data(), times.size() * sizeof(int64_t));
  for (int64_t b = 0; b < got.batch(); ++b) {
    for (int64_t t = 0; t < got.spec.lengths[b]; ++t) {
      HktAppend a = rows.of_token(got, b, t);
      for (int l = 0; l < a.levels; ++l) {
        mirror.translate_view(a.q[l]), mirror.translate_view(a.k[l]);
        mirror.translate_view(a.queries[l]), mirror.translate_view(a.keys[l]);
      }
      mirror.translate_view(a.v), mirror.translate_view(a.values);
      a.lengths = mirror.translate(&times[t]);
      const Status status = cuda::hkt_append(a, nullptr);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  expect_cuda(cudaDeviceSynchronize());
  auto expect_equal = [&](Array<float>& a, const Array<float>& b) {
    mirror.fetch(a);
    EXPECT_EQ(std::memcmp(a.raw().data(), b.raw().data(), a.raw().size() * sizeof(float)), 0);
  };
  for (size_t l = 0; l < want.k.size(); ++l) expect_equal(got.q[l], want.q[l]), expect_equal(got.k[l], want.k[l]);
  expect_equal(got.v, want.v);
}

template <class S>
void expect_pyramid(int levels, bool input_filter, double tolerance) {
  PyramidSteps<S> steps(levels, 3, /*batch=*/3, /*channels=*/300, input_filter);
  Mirror mirror;
  for (Array<S>* array : {&steps.x, &steps.inputs, &steps.out}) mirror.add(*array);
  for (auto* arrays : {&steps.filters, &steps.states})
    for (Array<S>& array : *arrays) mirror.add(array);
  mirror.add(steps.lengths.data(), steps.lengths.size() * sizeof(int64_t));
  PyramidStep p = steps.step();
  auto there = [&](auto*& pointer) {
    using Bytes = std::conditional_t<std::is_const_v<std::remove_pointer_t<std::remove_reference_t<decltype(pointer)>>>,
                                     const char, char>;
    pointer = mirror.translate(static_cast<Bytes*>(pointer));
  };
  there(p.x), there(p.out), there(p.inputs);
  p.lengths = mirror.translate(p.lengths);
  for (int l = 0; l < levels; ++l) there(p.filters[l]), there(p.states[l]);
  for (int64_t t = 0; t < 40; ++t) {
    steps.load(t);
    const std::vector<S>& x = steps.x.raw();
    expect_cuda(
        cudaMemcpy(mirror.translate(const_cast<S*>(x.data())), x.data(), x.size() * sizeof(S), cudaMemcpyHostToDevice));
    expect_cuda(cudaMemcpy(const_cast<int64_t*>(p.lengths), steps.lengths.data(),
                           steps.lengths.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
    const Status status = cuda::pyramid_step(p, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    mirror.fetch(steps.out);
    EXPECT_LT(steps.error(), tolerance) << "token " << t;
    steps.count();
  }
}

TEST(PyramidStepCuda, RowsEqualTheFilters) {
  STRATA_NEEDS_GPU();
  for (const int levels : {1, 3, 8}) {
    for (const bool input_filter : {false, true}) {
      SCOPED_TRACE(levels);
      expect_pyramid<double>(levels, input_filter, 1e-13);
      expect_pyramid<float>(levels, input_filter, 1e-5);
      expect_pyramid<BFloat16>(levels, input_filter, 6e-2);
      expect_pyramid<Float16>(levels, input_filter, 1e-2);
    }
  }
}

}  // namespace
}  // namespace strata::test
