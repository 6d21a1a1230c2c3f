// Streaming HSA: reference against finite differences, kernels against the reference, causality, decoding.
#include "strata/hsa_stream.h"

#include <gtest/gtest.h>

#include "cases/hkt_plain.h"
#include "cases/hsa_stream_case.h"
#include "strata/cpu.h"
#include "strata/hsa.h"

namespace strata::test {
namespace {

class HsaStream : public testing::TestWithParam<StreamCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, HsaStream, testing::ValuesIn(stream_cases()),
                         [](const auto& info) { return info.param.name; });

template <class S>
void run(StreamData<S>& d, int threads = 2) {
  ASSERT_TRUE(hsa_stream_forward(d.problem(threads), d.outputs()).ok());
  ASSERT_TRUE(hsa_stream_backward(d.problem(threads), d.outputs(), d.gradients()).ok());
}

template <class S>
void expect_close(const StreamCase& spec, double tolerance) {
  for (Isa isa : supported_isas()) {
    ASSERT_TRUE(set_isa(isa).ok());
    StreamData<S> fused(spec);
    run(fused);
    StreamData<double> exact(spec);
    exact.copy_inputs_from(fused);
    ASSERT_TRUE(hsa_stream_forward_ref(exact.problem(), exact.outputs()).ok());
    ASSERT_TRUE(hsa_stream_backward_ref(exact.problem(), exact.outputs(), exact.gradients()).ok());
    fused.each_result(exact, [&](const char* name, const auto& got, const auto& want) {
      EXPECT_LT(relative_error(got, want), tolerance) << name << " on " << isa_name(isa);
    });
  }
}
TEST_P(HsaStream, Float64EqualsReference) { expect_close<double>(GetParam(), 1e-12); }
TEST_P(HsaStream, Float32IsClose) { expect_close<float>(GetParam(), 1e-5); }
TEST_P(HsaStream, BFloat16IsClose) { expect_close<BFloat16>(GetParam(), 2e-2); }

TEST_P(HsaStream, SameBitsAtAnyThreadCount) {
  StreamData<float> one(GetParam());
  run(one, 1);
  for (int threads : {2, 3, 8}) {
    StreamData<float> many(GetParam());
    run(many, threads);
    many.each_result(one, [&](const char* name, const auto& got, const auto& want) {
      EXPECT_EQ(std::memcmp(got.raw().data(), want.raw().data(), got.raw().size() * sizeof(got.raw()[0])), 0) << name;
    });
  }
}

TEST_P(HsaStream, OutputsNeverDependOnLaterTokens) {
  StreamData<float> clean(GetParam());
  ASSERT_TRUE(hsa_stream_forward(clean.problem(), clean.outputs()).ok());
  for (int64_t t = 0; t < GetParam().tokens; t += std::max<int64_t>(1, GetParam().tokens / 17)) {
    StreamData<float> d(GetParam());
    for (Array<float>* array : {&d.q[0], &d.k[0], &d.v}) {
      array->each([&](int64_t b, int64_t h, int64_t token, int64_t c) {
        if (token >= t) (*array)(b, h, token, c) += 1.0f;
      });
    }
    ASSERT_TRUE(hsa_stream_forward(d.problem(), d.outputs()).ok());
    for (int64_t i = 0; i < t; ++i) ASSERT_EQ(d.out(0, 0, i, 0), clean.out(0, 0, i, 0)) << i << " changed from " << t;
  }
}

TEST(HsaStreamRef, GradientsByFiniteDifferences) {
  StreamData<double> d({"small", 1, 2, 11, 3, 2, 2, true, true, true});
  ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hsa_stream_backward_ref(d.problem(), d.outputs(), d.gradients()).ok());
  auto loss = [&] {
    EXPECT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
    double sum = 0;
    d.out.each([&](auto... at) { sum += d.out(at...) * d.dout(at...); });
    d.lse.each([&](auto... at) { sum += std::isfinite(d.lse(at...)) ? d.lse(at...) * d.dlse(at...) : 0.0; });
    return sum;
  };
  auto check = [&](const char* name, Array<double>& input, const Array<double> gradient) {
    input.each([&](auto... at) {
      const double kept = input(at...);
      input(at...) = kept + 1e-5;
      const double up = loss();
      input(at...) = kept - 1e-5;
      EXPECT_NEAR(gradient(at...), (up - loss()) / 2e-5, 2e-8) << name;
      input(at...) = kept;
    });
  };
  check("q", d.q[0], d.dq[0]), check("k", d.k[0], d.dk[0]), check("v", d.v, d.dv);
  check("key_bias", d.key_bias, d.dkey_bias), check("positions", d.positions, d.dpositions);
  // The weights are those of all heads; a weight of 0 hides its token, so that its gradient is 0 by definition.
  Array<double> dweights(1, 1, 11, 1);
  for (int64_t t = 0; t < 11; ++t) {
    const bool hidden = d.weights(0, 0, t, 0) == 0;
    if (hidden) {
      EXPECT_EQ(d.dweights(0, 0, t, 0), 0.0);
      d.weights(0, 0, t, 0) = 0.4;
    }
  }
  ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hsa_stream_backward_ref(d.problem(), d.outputs(), d.gradients()).ok());
  for (int64_t t = 0; t < 11; ++t) dweights(0, 0, t, 0) = d.dweights(0, 0, t, 0) + d.dweights(0, 1, t, 0);
  check("weights", d.weights, dweights);
}

// Row by row never further from causal softmax than the masked tree: lse_stream >= what the masked tree reaches, and
// sum lse - sum lse_stream is its KL. On the same left-packed tree, the stream's score is at least the masked tree's.
TEST(HsaStreamRef, ScoresAtLeastTheMaskedTree) {
  for (int64_t tokens : {9, 30, 64}) {
    StreamData<double> d({"score", 1, 2, tokens, 3, 4, 4});
    ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
    Tree tree;
    ASSERT_TRUE(balanced_tree(tokens, 3, Domain::kSet, &tree).ok());
    const TreeView view = tree.view();
    const int64_t zero = 0;
    HsaProblem p;
    p.dtype = DType::kFloat64;
    p.sequences = 1, p.heads = 2, p.head_size = p.value_size = 4;
    p.trees = &view, p.batch_of = &zero, p.first_token = &zero;
    p.q = d.q[0].view(), p.k = d.k[0].view(), p.scale = 0.7, p.causal = true;
    double score[2];
    ASSERT_TRUE(hsa_forward_ref(p, {{}, score}).ok());
    for (int h = 0; h < 2; ++h) {
      double sum = 0;
      for (int64_t i = 0; i < tokens; ++i) sum += d.lse(0, 0, h, i);
      EXPECT_GE(sum, static_cast<double>(tokens) * score[h] - 1e-10);
    }
  }
}

TEST(HsaStreamDecode, TenThousandStepsEqualTheParallelForm) {
  const StreamCase spec{"decode", 2, 2, 10000, 16, 8, 6, true, true, true};
  StreamData<double> d(spec);
  ASSERT_TRUE(hsa_stream_forward(d.problem(2), d.outputs()).ok());
  const int64_t capacity = hsa_stream_heights(spec.tokens, 16), rows = 2 * 2 * capacity * 16;
  std::vector<double> keys(rows * 8), values(rows * 6), kappas(rows), masses(2 * capacity * 16), q(4 * 8), k(4 * 8),
      v(4 * 6), weight(2), bias(4), out(4 * 6);
  std::vector<int64_t> lengths(2, 0);
  HsaStreamStep s;
  s.dtype = DType::kFloat64;
  s.batch = s.heads = s.key_heads = 2, s.branching = 16, s.head_size = 8, s.value_size = 6, s.capacity = capacity,
  s.scale = 0.7;
  s.q = q.data(), s.k = k.data(), s.v = v.data(), s.weight = weight.data(), s.key_bias = bias.data();
  s.positions = d.positions.data(), s.heights = d.heights;
  s.keys = keys.data(), s.values = values.data(), s.kappas = kappas.data(), s.masses = masses.data();
  s.lengths = lengths.data(), s.out = out.data();
  for (int64_t t = 0; t < spec.tokens; ++t) {
    for (int64_t b = 0; b < 2; ++b) {
      weight[b] = d.weights(b, 0, t, 0);
      for (int64_t h = 0; h < 2; ++h) {
        bias[b * 2 + h] = d.key_bias(b, h, t, 0);
        for (int c = 0; c < 8; ++c)
          q[(b * 2 + h) * 8 + c] = d.q[0](b, h, t, c), k[(b * 2 + h) * 8 + c] = d.k[0](b, h, t, c);
        for (int c = 0; c < 6; ++c) v[(b * 2 + h) * 6 + c] = d.v(b, h, t, c);
      }
    }
    ASSERT_TRUE(hsa_stream_step(s).ok());
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 2; ++h)
        for (int c = 0; c < 6; ++c) ASSERT_NEAR(out[(b * 2 + h) * 6 + c], d.out(b, h, t, c), 1e-11) << "token " << t;
  }
  EXPECT_EQ(hsa_stream_entries(1048575, 16), 75);
  lengths[1] = int64_t{1} << 40;
  EXPECT_NE(hsa_stream_step(s).message().find("capacity: sequence 1 needs"), std::string::npos);
}

// Counts the pairs of a token and an entry that it sees: itself and, at every height, its ancestor's earlier siblings.
TEST(HsaStreamCost, CountsWhatEveryTokenSees) {
  for (int branching : {2, 3, 16}) {
    int64_t pairs = 0;
    for (int64_t t = 0; t < 300; ++t) {
      EXPECT_EQ(hsa_stream_cost(t, branching), pairs) << "branching " << branching << ", " << t << " tokens";
      int64_t seen = 1;
      for (int64_t size = 1; size <= t; size *= branching) {
        for (int64_t node = 0; node < t / size; ++node) seen += node / branching == t / size / branching;
      }
      pairs += seen;
    }
  }
}

TEST(HsaStreamErrors, MistakesAreNamed) {
  StreamData<float> d({"errors", 1, 1, 5, 3, 2, 2});
  auto refuse = [&](auto change, const std::string& words) {
    HsaStreamProblem p = d.problem();
    change(p);
    const std::string message = hsa_stream_forward(p, d.outputs()).message();
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  refuse([](auto& p) { p.branching = 1; }, "branching: expected 2 to 64, got 1");
  refuse([](auto& p) { p.branching = 65; }, "branching: expected 2 to 64, got 65");
  refuse([](auto& p) { p.head_size = 0; }, "head_size");
  refuse([](auto& p) { p.k[0].data = nullptr; }, "k[0]: expected a pointer");
  refuse([](auto& p) { p.tokens = -1; }, "tokens");
  HsaStreamGradients g = d.gradients();
  g.dweights = d.dweights.view();
  EXPECT_NE(hsa_stream_backward(d.problem(), d.outputs(), g).message().find("dweights: expected null"),
            std::string::npos);
}

}  // namespace
}  // namespace strata::test
