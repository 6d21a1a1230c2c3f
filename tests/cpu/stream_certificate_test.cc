// The certificate of streaming attention: its definition by plain recursion, and that it is never violated.
#include <gtest/gtest.h>

#include <cmath>

#include "cases/hkt_plain.h"
#include "cases/hsa_stream_case.h"

namespace strata::test {
namespace {

// A node of the tokens begin .. begin + size - 1 of one key head, by the definition.
struct PlainNode {
  double mass = 0;
  std::vector<double> mean, radius;  // (levels, head_size) and kappa; levels + 1

  PlainNode(StreamData<double>& d, int64_t batch, int64_t head, int64_t begin, int64_t size) {
    const StreamCase& c = d.spec;
    const HsaStreamProblem p = d.problem();
    const int width = c.levels * c.head_size + 1;
    mean.assign(width, 0.0), radius.assign(c.levels + 1, 0.0);
    if (size == 1) {
      mass = c.weights ? d.weights(batch, 0, begin, 0) : 1.0;
      for (int l = 0; l < c.levels; ++l)
        for (int x = 0; x < c.head_size; ++x) mean[l * c.head_size + x] = d.k[l](batch, head, begin >> l, x);
      if (c.key_bias) mean[width - 1] = d.key_bias(batch, head, begin, 0);
      return;
    }
    std::vector<PlainNode> children;
    for (int64_t at = begin; at < std::min(c.tokens, begin + size); at += size / p.branching)
      children.emplace_back(d, batch, head, at, size / p.branching);
    for (const PlainNode& child : children) mass += child.mass;
    for (const PlainNode& child : children)
      for (int x = 0; x < width && mass > 0; ++x) mean[x] += child.mass / mass * child.mean[x];
    for (const PlainNode& child : children) {
      for (int l = 0; l <= c.levels && child.mass > 0; ++l) {
        double square = 0;
        for (int x = l * c.head_size; x < std::min(width, (l + 1) * c.head_size); ++x)
          square += std::pow(child.mean[x] - mean[x], 2);
        radius[l] = std::max(radius[l], std::sqrt(square) + child.radius[l]);
      }
    }
  }
};

double plain_bound(StreamData<double>& d, int64_t batch, int64_t h, int64_t i) {
  const StreamCase& c = d.spec;
  double widest = 0;
  for (int64_t size = c.branching; size <= c.tokens; size *= c.branching) {
    for (int64_t m = 0; m * size < c.tokens; ++m) {
      const int64_t a = i / size, back = a / c.branching - m / c.branching;
      const bool sees =
          c.both_sides ? std::abs(back) < c.near && std::abs(a - m) >= c.near : back < c.near && m <= a - c.near;
      if (!sees) continue;
      const PlainNode node(d, batch, h / (c.heads / c.key_heads), m * size, size);
      double sum = node.radius[c.levels];
      for (int l = 0; l < c.levels; ++l) {
        double square = 0;
        for (int x = 0; x < c.head_size; ++x) square += std::pow(d.q[l](batch, h, i >> l, x), 2);
        const double weight = c.levels == 1 ? 1.0 : d.level_weights(0, 0, h, l);
        sum += 0.7 * weight * std::sqrt(square) * node.radius[l];  // 0.7: the scale of the cases
      }
      widest = std::max(widest, sum);
    }
  }
  return widest * widest / 2;
}

std::vector<StreamCase> all_cases() {
  std::vector<StreamCase> cases = stream_cases();
  for (const StreamCase& c : strata_stream_cases()) cases.push_back(c);
  return cases;
}

class StreamCertificate : public testing::TestWithParam<StreamCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, StreamCertificate, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(StreamCertificate, EqualsTheDefinition) {
  StreamData<double> d(GetParam());
  const StreamCase& c = d.spec;
  std::vector<double> bound(c.batch * c.heads * c.tokens, -1.0);
  ASSERT_TRUE(hsa_stream_certificate(d.problem(2), bound.data()).ok());
  for (int64_t row = 0; row < c.batch * c.heads; row += 3) {
    for (int64_t i = c.tokens - 1; i >= 0; i -= std::max<int64_t>(1, c.tokens / 9)) {
      const double want = plain_bound(d, row / c.heads, row % c.heads, i);
      EXPECT_NEAR(bound[row * c.tokens + i], want, 1e-11 * (1 + want)) << "row " << row << ", token " << i;
    }
  }
}

TEST_P(StreamCertificate, OtherTypesAreClose) {
  auto expect_close = [](auto storage, double tolerance) {
    using S = decltype(storage);
    StreamData<S> d(GetParam());
    StreamData<double> exact(GetParam());
    exact.copy_inputs_from(d);
    const StreamCase& c = d.spec;
    std::vector<float> got(c.batch * c.heads * c.tokens);
    std::vector<double> want(got.size());
    ASSERT_TRUE(hsa_stream_certificate(d.problem(), got.data()).ok());
    ASSERT_TRUE(hsa_stream_certificate(exact.problem(), want.data()).ok());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance * (1 + want[i])) << i;
  };
  expect_close(float{}, 1e-5);
  expect_close(BFloat16{}, 1e-5);
}

// The divergence from HKT, which is the same with neighbours without end, stays below it.
TEST_P(StreamCertificate, IsNeverViolated) {
  StreamCase c = GetParam();
  c.positions = false;
  StreamData<double> d(c), hkt(c);
  hkt.spec.near = 1 << 20;
  ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hsa_stream_forward_ref(hkt.problem(), hkt.outputs()).ok());
  std::vector<double> bound(c.batch * c.heads * c.tokens);
  ASSERT_TRUE(hsa_stream_certificate(d.problem(), bound.data()).ok());
  size_t at = 0;
  d.lse.each([&](auto... i) {
    const double here = d.lse(i...), there = hkt.lse(i...);
    if (std::isfinite(there)) {
      EXPECT_LE(there - here, bound[at] + 1e-11);
    }
    ++at;
  });
}

TEST(StreamCertificateAbuse, MistakesAreNamed) {
  StreamData<double> d({"abuse", 1, 1, 20, 4, 4, 4});
  std::vector<double> bound(20);
  auto message = [&](auto change) {
    HsaStreamProblem p = d.problem();
    change(p);
    return hsa_stream_certificate(p, bound.data()).message();
  };
  EXPECT_NE(message([](auto& p) { p.near = 0; }).find("near: expected 1 or more"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.k[0].data = nullptr; }).find("k"), std::string::npos);
  EXPECT_NE(hsa_stream_certificate(d.problem(), nullptr).message().find("bound"), std::string::npos);
  EXPECT_TRUE(message([](auto& p) { p.v.data = nullptr; }).empty());
}

}  // namespace
}  // namespace strata::test
