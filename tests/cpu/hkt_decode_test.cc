// Decoding steps: the attention of one token, the rows that a token adds to a cache and to a pyramid.
#include <gtest/gtest.h>

#include "cases/hkt_decode_case.h"
#include "cases/hkt_plain.h"
#include "cases/pyramid_steps.h"
#include "strata/cpu.h"

namespace strata::test {
namespace {

class HktDecodeKernel : public testing::TestWithParam<DecodeCase> {
 protected:
  template <class S>
  static void expect_close(double tolerance) {
    DecodeData<S> d(GetParam());
    const Array<double> want = d.expected();
    for (Isa isa : supported_isas()) {
      ASSERT_TRUE(set_isa(isa).ok());
      const Status status = hkt_decode(d.step());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_LT(relative_error(d.out, want), tolerance) << isa_name(isa);
      d.out.fill(std::nan(""));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Cases, HktDecodeKernel, testing::ValuesIn(hkt_decode_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(HktDecodeKernel, Float64EqualsTheReference) { expect_close<double>(1e-12); }
TEST_P(HktDecodeKernel, Float32IsClose) { expect_close<float>(1e-5); }
TEST_P(HktDecodeKernel, BFloat16IsClose) { expect_close<BFloat16>(1e-2); }

TEST_P(HktDecodeKernel, TokensAppendedOneByOneMakeTheCache) {
  DecodeData<float> want(GetParam()), got(GetParam());
  RowsOfTokens<float> rows(got);
  int64_t longest = 0;
  for (const int64_t length : got.spec.lengths) longest = std::max(longest, length);
  for (int64_t t = 0; t < longest; ++t) {
    for (int64_t b = 0; b < got.batch(); ++b) {
      if (t >= got.spec.lengths[b]) continue;
      HktAppend append = rows.of_token(got, b, t);
      std::vector<float> current(got.spec.key_heads * got.spec.levels * got.spec.head_size);
      append.current_k = current.data();
      const Status status = hkt_append(append);
      ASSERT_TRUE(status.ok()) << status.message();
      for (int l = 0; l < got.spec.levels; ++l)
        ASSERT_EQ(current[l * got.spec.head_size], got.all.k[l](b, 0, t >> l, 0)) << "token " << t << ", level " << l;
    }
  }
  auto expect_equal = [&](const Array<float>& a, const Array<float>& b) {
    EXPECT_EQ(std::memcmp(a.raw().data(), b.raw().data(), a.raw().size() * sizeof(float)), 0);
  };
  for (size_t l = 0; l < want.k.size(); ++l) expect_equal(got.q[l], want.q[l]), expect_equal(got.k[l], want.k[l]);
  expect_equal(got.v, want.v);
}

TEST(HktDecodeErrors, NameTheArgument) {
  DecodeData<float> d({"errors", 2, 1, 2, 8, 8, {9}});
  HktDecode step = d.step();
  step.value_slots = 8;
  EXPECT_NE(hkt_decode(step).message().find("lengths: 9 tokens"), std::string::npos) << hkt_decode(step).message();
  step = d.step();
  step.key_slots[1] = 4;
  EXPECT_NE(hkt_decode(step).message().find("level 1"), std::string::npos) << hkt_decode(step).message();
  step = d.step();
  step.key_slots[1] = -1;
  EXPECT_NE(hkt_decode(step).message().find("key_slots"), std::string::npos) << hkt_decode(step).message();
  RowsOfTokens<float> rows(d);
  HktAppend append = rows.of_token(d, 0, 0);
  append.key_slots[1] = 0;
  EXPECT_NE(hkt_append(append).message().find("queries, keys"), std::string::npos) << hkt_append(append).message();
  PyramidSteps<float> steps(2, 5, 3, 3, true);
  PyramidStep p = steps.step();
  p.slots[0] = 2;
  EXPECT_NE(pyramid_step(p).message().find("states[0]"), std::string::npos) << pyramid_step(p).message();
}

template <class S>
void expect_pyramid(int levels, int taps, bool input_filter, double tolerance) {
  PyramidSteps<S> steps(levels, taps, /*batch=*/2, /*channels=*/7, input_filter);
  for (int64_t t = 0; t < 70; ++t) {
    steps.load(t);
    const Status status = pyramid_step(steps.step());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_LT(steps.error(), tolerance) << "token " << t;
    steps.count();
  }
}

TEST(PyramidStep, RowsEqualTheFilters) {
  for (const int levels : {1, 2, 3, 8}) {
    for (const bool input_filter : {false, true}) {
      SCOPED_TRACE(levels);
      expect_pyramid<double>(levels, 3, input_filter, 1e-13);
      expect_pyramid<float>(levels, 1, input_filter, 1e-5);
      expect_pyramid<BFloat16>(levels, 4, input_filter, 6e-2);
    }
  }
}

}  // namespace
}  // namespace strata::test
