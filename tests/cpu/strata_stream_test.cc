// What the theory says of streaming Strata attention (docs/MATH.md, section 3): its nodes partition what a token may
// see, its divergence from HKT is a difference of two lse, the least that its partition allows, never grows with
// `near`, and is bounded by how much the scores differ within a node; without end it is HKT.
#include <gtest/gtest.h>

#include <numeric>

#include "cases/hkt_plain.h"
#include "cases/hsa_stream_case.h"
#include "strata/hkt.h"
#include "strata/hsa_stream.h"

namespace strata::test {
namespace {

// Causal HKT, or HKT that sees both sides, on the arrays of a stream.
HktProblem hkt_of(StreamData<double>& d) {
  const HsaStreamProblem p = d.problem();
  HktProblem hkt;
  hkt.dtype = DType::kFloat64;
  hkt.batch = p.batch, hkt.heads = p.heads, hkt.key_heads = p.key_heads, hkt.tokens = p.tokens, hkt.levels = p.levels;
  hkt.head_size = p.head_size, hkt.value_size = p.value_size, hkt.causal = !p.both_sides, hkt.scale = p.scale;
  for (int l = 0; l < p.levels; ++l) hkt.q[l] = p.q[l], hkt.k[l] = p.k[l];
  hkt.v = p.v, hkt.weights = d.level_weights.data();
  return hkt;
}

std::vector<double> attention_of(StreamData<double>& d, int64_t head = 0) {
  std::vector<double> attention(d.spec.tokens * d.spec.tokens);
  EXPECT_TRUE(hsa_stream_materialize(d.problem(), 0, head, attention.data()).ok());
  return attention;
}

// With equal scores every token that is seen once has the same share, so a token missed or seen twice shows.
TEST(StrataStream, NodesPartitionWhatATokenMaySee) {
  std::mt19937_64 random(7);
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 150; ++round) {
    StreamCase c{"partition", 1, 1, draw(1, 260), draw(2, 9), 1, 1};
    c.near = draw(1, 5);
    c.both_sides = draw(0, 1) == 1;
    StreamData<double> d(c);
    d.q[0].fill(0);
    const std::vector<double> attention = attention_of(d);
    for (int64_t i = 0; i < c.tokens; ++i) {
      const double share = 1.0 / static_cast<double>(c.both_sides ? c.tokens : i + 1);
      for (int64_t j = 0; j < c.tokens; ++j) {
        const double want = c.both_sides || j <= i ? share : 0.0;
        ASSERT_NEAR(attention[i * c.tokens + j], want, 1e-12)
            << c.tokens << " tokens, b " << c.branching << ", near " << c.near << ", row " << i << ", key " << j;
      }
    }
  }
}

class StrataStreamTheory : public testing::TestWithParam<StreamCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, StrataStreamTheory,
    testing::Values(StreamCase{"one_level", 1, 2, 70, 4, 4, 3, false, false, false, Memory::kDense, 2},
                    StreamCase{"levels", 1, 2, 83, 3, 4, 3, false, false, false, Memory::kDense, 2, 3},
                    StreamCase{"both_sides", 1, 2, 61, 3, 4, 3, false, false, false, Memory::kDense, 2, 3, 0, true}),
    [](const auto& info) { return info.param.name; });

TEST_P(StrataStreamTheory, DivergenceFromHktIsADifferenceOfLse) {
  StreamData<double> d(GetParam());
  const int64_t T = d.spec.tokens;
  ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
  for (int64_t h = 0; h < d.spec.heads; ++h) {
    std::vector<double> scores(T * T), softmax(T * T);
    ASSERT_TRUE(hkt_materialize(hkt_of(d), 0, h, scores.data(), softmax.data()).ok());
    const std::vector<double> attention = attention_of(d, h);
    for (int64_t i = 0; i < T; ++i) {
      double kl = 0, sum = 0;
      for (int64_t j = 0; j < T; ++j) {
        const double a = attention[i * T + j];
        sum += std::isfinite(scores[i * T + j]) ? std::exp(scores[i * T + j]) : 0.0;
        if (a > 0) kl += a * std::log(a / softmax[i * T + j]);
      }
      EXPECT_NEAR(kl, std::log(sum) - d.lse(0, 0, h, i), 1e-11) << "row " << i;
      EXPECT_GE(kl, -1e-12);
    }
  }
}

// Mirror descent over the masses of the nodes of a row, from equal ones, reaches the attention itself: it is the
// closest to HKT's among those that give the tokens of a node equal shares.
TEST_P(StrataStreamTheory, NoTiedRowIsCloserToHkt) {
  StreamData<double> d(GetParam());
  const int64_t T = d.spec.tokens, i = T * 2 / 3;
  std::vector<double> scores(T * T), softmax(T * T);
  ASSERT_TRUE(hkt_materialize(hkt_of(d), 0, 0, scores.data(), softmax.data()).ok());
  const std::vector<double> attention = attention_of(d);
  std::vector<std::vector<int64_t>> nodes;  // neighbours with equal shares
  for (int64_t j = 0; j < T; ++j) {
    if (attention[i * T + j] == 0) continue;
    const bool tied = !nodes.empty() && attention[i * T + nodes.back().back()] == attention[i * T + j];
    if (!tied) nodes.emplace_back();
    nodes.back().push_back(j);
  }
  ASSERT_GT(nodes.size(), 3u);
  std::vector<double> mass(nodes.size(), 1.0 / static_cast<double>(nodes.size()));
  for (int step = 0; step < 400; ++step) {
    double sum = 0;
    for (size_t n = 0; n < nodes.size(); ++n) {
      double mean = 0;
      for (int64_t j : nodes[n]) mean += std::log(softmax[i * T + j]) / static_cast<double>(nodes[n].size());
      const double slope = std::log(mass[n] / static_cast<double>(nodes[n].size())) - mean;
      mass[n] *= std::exp(-0.3 * slope);
      sum += mass[n];
    }
    for (double& m : mass) m /= sum;
  }
  for (size_t n = 0; n < nodes.size(); ++n)
    EXPECT_NEAR(mass[n] / static_cast<double>(nodes[n].size()), attention[i * T + nodes[n][0]], 1e-10);
}

TEST_P(StrataStreamTheory, DivergenceNeverGrowsWithNear) {
  StreamCase c = GetParam();
  std::vector<double> before;
  for (c.near = 1; c.near <= 9; ++c.near) {
    StreamData<double> d(c);
    ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
    std::vector<double> lse;
    d.lse.each([&](auto... at) { lse.push_back(d.lse(at...)); });
    for (size_t row = 0; row < before.size(); ++row) EXPECT_GE(lse[row], before[row] - 1e-12) << "near " << c.near;
    before = lse;
  }
}

// KL_i <= delta_i^2 / 8, delta_i the largest range of the scores within one node of the row (Hoeffding).
TEST_P(StrataStreamTheory, DivergenceIsBoundedByTheRangesWithinNodes) {
  StreamData<double> d(GetParam());
  const int64_t T = d.spec.tokens;
  ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
  std::vector<double> scores(T * T);
  ASSERT_TRUE(hkt_materialize(hkt_of(d), 0, 0, scores.data(), nullptr).ok());
  const std::vector<double> attention = attention_of(d);
  std::vector<double> certificate(d.spec.heads * T);  // cheaper and wider
  ASSERT_TRUE(hsa_stream_certificate(d.problem(), certificate.data()).ok());
  int positive = 0;
  for (int64_t i = 0; i < T; ++i) {
    double sum = 0, widest = 0;
    for (int64_t j = 0; j < T; ++j) {
      if (attention[i * T + j] == 0) continue;
      sum += std::exp(scores[i * T + j]);
      double low = scores[i * T + j], high = low;
      for (int64_t t = j; t < T && attention[i * T + t] == attention[i * T + j]; ++t)
        low = std::min(low, scores[i * T + t]), high = std::max(high, scores[i * T + t]);
      widest = std::max(widest, high - low);
    }
    const double kl = std::log(sum) - d.lse(0, 0, 0, i);
    EXPECT_LE(kl, widest * widest / 8 + 1e-12) << "row " << i;
    EXPECT_LE(widest * widest / 8, certificate[i] + 1e-12) << "row " << i;
    positive += kl > 1e-6;
  }
  EXPECT_GT(positive, T / 4);  // the bound was tried
}

// The corner "neighbours without end": values and gradients of HKT, with one level of flat attention.
TEST_P(StrataStreamTheory, WithoutEndItIsHkt) {
  for (int levels : {1, GetParam().levels}) {
    StreamCase c = GetParam();
    c.near = 1000, c.levels = levels, c.key_heads = 1;
    StreamData<double> d(c), want(c);
    ASSERT_TRUE(hsa_stream_forward(d.problem(), d.outputs()).ok());
    ASSERT_TRUE(hsa_stream_backward(d.problem(), d.outputs(), d.gradients()).ok());
    const HktProblem hkt = hkt_of(want);
    const HktOutputs outputs{want.out.view(), want.lse.data()};
    HktGradients g;
    g.dout = want.dout.view(), g.dlse = want.dlse.data(), g.dv = want.dv.view();
    g.dweights = want.dlevel_weights.data();
    for (int l = 0; l < levels; ++l) g.dq[l] = want.dq[l].view(), g.dk[l] = want.dk[l].view();
    ASSERT_TRUE(hkt_forward_ref(hkt, outputs).ok());
    ASSERT_TRUE(hkt_backward_ref(hkt, outputs, g).ok());
    d.each_result(want, [&](const char* name, const auto& got, const auto& expected) {
      EXPECT_LT(relative_error(got, expected), 1e-12) << name << ", " << levels << " levels";
    });
  }
}

// What a hidden token holds, and a coarse row of hidden tokens, changes nothing.
TEST(StrataStream, HiddenTokensMayHoldAnything) {
  StreamCase c{"hidden", 1, 2, 90, 4, 4, 3, true, false, false, Memory::kDense, 2, 3};
  StreamData<float> clean(c), dirty(c);
  for (int l = 0; l < c.levels; ++l) {
    dirty.k[l].each([&](int64_t b, int64_t h, int64_t row, int64_t x) {
      bool real = false;
      for (int64_t t = row << l; t < std::min<int64_t>(c.tokens, (row + 1) << l); ++t)
        real = real || dirty.weights(0, 0, t, 0) > 0;
      if (!real) dirty.k[l](b, h, row, x) = NAN;
    });
  }
  dirty.v.each([&](int64_t b, int64_t h, int64_t t, int64_t x) {
    if (dirty.weights(0, 0, t, 0) == 0) dirty.v(b, h, t, x) = NAN;
  });
  for (StreamData<float>* d : {&clean, &dirty}) {
    ASSERT_TRUE(hsa_stream_forward(d->problem(), d->outputs()).ok());
    ASSERT_TRUE(hsa_stream_backward(d->problem(), d->outputs(), d->gradients()).ok());
  }
  dirty.each_result(clean, [&](const char* name, const auto& got, const auto& want) {
    EXPECT_EQ(relative_error(got, want), 0.0) << name;
  });
}

}  // namespace
}  // namespace strata::test
