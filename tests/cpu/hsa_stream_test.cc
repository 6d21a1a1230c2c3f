// Streaming attention: kernels against the reference, causality, gradients against finite differences, decoding. What
// its theory says is in strata_stream_test.cc.
#include "strata/hsa_stream.h"

#include <gtest/gtest.h>

#include "cases/hkt_plain.h"
#include "cases/hsa_stream_decoder.h"
#include "cases/isas.h"
#include "strata/hsa.h"

namespace strata::test {
namespace {

class HsaStream : public testing::TestWithParam<StreamCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, HsaStream, testing::ValuesIn(stream_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Strata, HsaStream, testing::ValuesIn(strata_stream_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Arguments, HsaStream, testing::ValuesIn(stream_argument_cases()),
                         [](const auto& info) { return info.param.name; });

template <class S>
void run(StreamData<S>& d, int threads = 2) {
  ASSERT_TRUE(hsa_stream_forward(d.problem(threads), d.outputs()).ok());
  ASSERT_TRUE(hsa_stream_backward(d.problem(threads), d.outputs(), d.gradients()).ok());
}

template <class S>
void expect_close(const StreamCase& spec, double tolerance) {
  const IsaScope scope;
  for (Isa isa : tested_isas()) {
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

template <class S>
void expect_same_bits(const StreamCase& spec) {
  StreamData<S> one(spec);
  run(one, 1);
  for (int threads : {2, 3, 8}) {
    StreamData<S> many(spec);
    run(many, threads);
    many.each_result(one, [&](const char* name, const auto& got, const auto& want) {
      EXPECT_EQ(std::memcmp(got.raw().data(), want.raw().data(), got.raw().size() * sizeof(got.raw()[0])), 0)
          << name << " on " << isa_name(current_isa());
    });
  }
}
TEST_P(HsaStream, SameBitsAtAnyThreadCount) {
  expect_same_bits<float>(GetParam());
  const IsaScope scope;
  for (Isa isa : tested_isas()) {
    if (!is_for_bfloat16(isa)) continue;
    ASSERT_TRUE(set_isa(isa).ok());
    expect_same_bits<BFloat16>(GetParam());
  }
}

TEST_P(HsaStream, CausalOutputsNeverDependOnLaterTokens) {
  const StreamCase& c = GetParam();
  if (c.both_sides || c.is_packed()) return;
  StreamData<float> clean(c);
  ASSERT_TRUE(hsa_stream_forward(clean.problem(), clean.outputs()).ok());
  for (int64_t t = 0; t < c.tokens; t += std::max<int64_t>(1, c.tokens / 17)) {
    StreamData<float> d(c);
    auto change = [&](Array<float>& array, int level) {  // a coarse row is known from its first token on
      array.each([&](int64_t b, int64_t h, int64_t row, int64_t channel) {
        if (row << level >= t) array(b, h, row, channel) += 1.0f;
      });
    };
    for (int l = 0; l < c.levels; ++l) change(d.q[l], l), change(d.k[l], l);
    change(d.v, 0);
    ASSERT_TRUE(hsa_stream_forward(d.problem(), d.outputs()).ok());
    for (int64_t i = 0; i < t; ++i) ASSERT_EQ(d.out(0, 0, i, 0), clean.out(0, 0, i, 0)) << i << " changed from " << t;
  }
}

class StreamGradients : public testing::TestWithParam<StreamCase> {};
INSTANTIATE_TEST_SUITE_P(
    Small, StreamGradients,
    testing::Values(StreamCase{"hsa", 1, 2, 11, 3, 2, 2, true, true, true},
                    StreamCase{"near", 1, 1, 14, 2, 2, 2, true, true, true, Memory::kDense, 2},
                    StreamCase{"levels", 2, 2, 13, 3, 2, 2, true, true, true, Memory::kDense, 2, 3, 1},
                    StreamCase{"both_sides", 1, 2, 13, 2, 2, 2, true, true, true, Memory::kDense, 2, 3, 1, true},
                    StreamCase{
                        "dropout", 1, 2, 13, 2, 2, 2, true, true, true, Memory::kDense, 2, 3, 1, false, {}, 0.3}),
    [](const auto& info) { return info.param.name; });

TEST_P(StreamGradients, OfTheReferenceEqualFiniteDifferences) {
  const StreamCase& c = GetParam();
  StreamData<double> d(c);
  // A weight of 0 hides its token, so that its gradient is 0 by definition; near 0 differences are poor.
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t t = 0; t < c.tokens; ++t)
      if (d.weights(b, 0, t, 0) < 0.2) d.weights(b, 0, t, 0) = 0.4;
  }
  ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hsa_stream_backward_ref(d.problem(), d.outputs(), d.gradients()).ok());
  auto loss = [&] {
    EXPECT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
    double sum = 0;
    d.out.each([&](auto... at) { sum += d.out(at...) * d.dout(at...); });
    d.lse.each([&](auto... at) { sum += d.lse(at...) * d.dlse(at...); });
    return sum;
  };
  auto check = [&](const char* name, Array<double>& input, const Array<double> gradient) {
    input.each([&](auto... at) {
      const double kept = input(at...);
      input(at...) = kept + 1e-5;
      const double up = loss();
      input(at...) = kept - 1e-5;
      EXPECT_NEAR(gradient(at...), (up - loss()) / 2e-5, 3e-8) << name;
      input(at...) = kept;
    });
  };
  for (int l = 0; l < c.levels; ++l) check("q", d.q[l], d.dq[l]), check("k", d.k[l], d.dk[l]);
  if (c.levels > 1) check("level_weights", d.level_weights, d.dlevel_weights);
  check("v", d.v, d.dv), check("key_bias", d.key_bias, d.dkey_bias), check("positions", d.positions, d.dpositions);
  Array<double> dweights(c.batch, 1, c.tokens, 1);  // the weights are those of all heads
  dweights.each([&](int64_t b, int64_t, int64_t t, int64_t) {
    double sum = 0;
    for (int64_t h = 0; h < d.spec.key_heads; ++h) sum += d.dweights(b, h, t, 0);
    dweights(b, 0, t, 0) = sum;
  });
  check("weights", d.weights, dweights);
}

// Packed sequences give what each gives alone, with its own draws of dropout.
TEST(HsaStreamRef, PackedSequencesAreAsAlone) {
  for (const StreamCase& c : stream_argument_cases()) {
    if (!c.is_packed()) continue;
    StreamData<double> all(c);
    ASSERT_TRUE(hsa_stream_forward_ref(all.problem(), all.outputs()).ok());
    ASSERT_TRUE(hsa_stream_backward_ref(all.problem(), all.outputs(), all.gradients()).ok());
    for (int64_t b = 0; b < c.batch; ++b) {
      // A padded batch with as many sequences, of this one's length, so that dropout draws for sequence b.
      StreamCase alone = c;
      alone.lengths = {};
      alone.tokens = c.lengths[b];
      if (alone.tokens == 0) continue;
      StreamData<double> one(alone);
      auto each_row = [&](Array<double>& array, Array<double>& packed, int l, auto f) {
        array.each([&](int64_t part, int64_t h, int64_t t, int64_t x) {
          if (part == b) f(array(part, h, t, x), packed(0, h, all.packed.begins[l][b] + t, x));
        });
      };
      auto copy = [](double& to, double from) { to = from; };
      for (int l = 0; l < c.levels; ++l) each_row(one.q[l], all.q[l], l, copy), each_row(one.k[l], all.k[l], l, copy);
      each_row(one.v, all.v, 0, copy), each_row(one.dout, all.dout, 0, copy);
      each_row(one.weights, all.weights, 0, copy), each_row(one.key_bias, all.key_bias, 0, copy);
      one.level_weights.copy_from(all.level_weights);
      one.heights = all.heights, one.positions = all.positions;
      for (auto* d : {&one, &all}) d->dlse.fill(0);
      HsaStreamGradients g = one.gradients();
      one.dpositions = Array<double>(1, c.heads, all.heights, all.positions.shape()[3]);
      g.dpositions = c.positions ? one.dpositions.data() : nullptr;
      ASSERT_TRUE(hsa_stream_forward_ref(one.problem(), one.outputs()).ok());
      ASSERT_TRUE(hsa_stream_backward_ref(one.problem(), one.outputs(), g).ok());
      ASSERT_TRUE(hsa_stream_backward_ref(all.problem(), all.outputs(), all.gradients()).ok());
      auto expect_same = [&](double got, double want) {
        ASSERT_NEAR(got, want, 1e-12) << c.name << ", sequence " << b;
      };
      each_row(one.out, all.out, 0, expect_same), each_row(one.dv, all.dv, 0, expect_same);
      for (int l = 0; l < c.levels; ++l) {
        each_row(one.dq[l], all.dq[l], l, expect_same);
        each_row(one.dk[l], all.dk[l], l, expect_same);
      }
    }
  }
}

// The output is the mean of its draws, and no draw is that of another row or node.
TEST(HsaStreamRef, DropoutHasTheRightMean) {
  StreamCase c{"mean", 1, 1, 40, 3, 2, 2, false, false, false, Memory::kDense, 2};
  StreamData<double> whole(c);
  ASSERT_TRUE(hsa_stream_forward_ref(whole.problem(), whole.outputs()).ok());
  c.dropout = 0.25;
  Array<double> mean(1, 1, 40, 2);
  mean.fill(0);
  constexpr int kDraws = 3000;
  for (int64_t offset = 0; offset < kDraws; ++offset) {
    StreamData<double> d(c);
    d.dropout_state[1] = offset;
    ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
    mean.each([&](auto... at) { mean(at...) += d.out(at...) / kDraws; });
  }
  mean.each([&](auto... at) { EXPECT_NEAR(mean(at...), whole.out(at...), 0.1); });
}

TEST(HsaStreamRef, AHiddenTokenHasNoGradients) {
  StreamData<double> d({"hidden", 1, 2, 40, 3, 2, 2, true, true, true, Memory::kDense, 2, 2});
  ASSERT_TRUE(hsa_stream_forward_ref(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hsa_stream_backward_ref(d.problem(), d.outputs(), d.gradients()).ok());
  int hidden = 0;
  for (int64_t t = 0; t < 40; ++t) {
    if (d.weights(0, 0, t, 0) != 0) continue;
    ++hidden;
    EXPECT_EQ(d.dweights(0, 0, t, 0), 0.0);
    EXPECT_EQ(d.dv(0, 0, t, 0), 0.0);
    EXPECT_EQ(d.dk[0](0, 0, t, 0), 0.0);
  }
  EXPECT_GT(hidden, 0);
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
    p.sequences = 1, p.heads = p.key_heads = 2, p.head_size = p.value_size = 4;
    p.trees = &view, p.batch_of = &zero, p.first_token = &zero;
    p.q[0] = d.q[0].view(), p.k[0] = d.k[0].view(), p.scale = 0.7, p.causal = true;
    double score[2];
    ASSERT_TRUE(hsa_forward_ref(p, {{}, score}).ok());
    for (int h = 0; h < 2; ++h) {
      double sum = 0;
      for (int64_t i = 0; i < tokens; ++i) sum += d.lse(0, 0, h, i);
      EXPECT_GE(sum, static_cast<double>(tokens) * score[h] - 1e-10);
    }
  }
}

class HsaStreamDecode : public testing::TestWithParam<StreamCase> {};
INSTANTIATE_TEST_SUITE_P(
    Long, HsaStreamDecode,
    testing::Values(StreamCase{"near1", 2, 2, 10000, 16, 8, 6, true, true, true},
                    StreamCase{"near2", 2, 2, 10000, 16, 8, 6, true, true, true, Memory::kDense, 2},
                    StreamCase{"near3", 1, 2, 10000, 4, 4, 4, true, true, true, Memory::kDense, 3},
                    StreamCase{"near2_levels", 1, 4, 10000, 16, 8, 6, true, true, true, Memory::kDense, 2, 3, 2}),
    [](const auto& info) { return info.param.name; });

TEST_P(HsaStreamDecode, TenThousandStepsEqualTheParallelForm) {
  StreamData<double> d(GetParam());
  ASSERT_TRUE(hsa_stream_forward(d.problem(2), d.outputs()).ok());
  Decoder decoder(d);
  const StreamCase& c = d.spec;
  const HsaStreamStep s = decoder.step(d);
  for (int64_t t = 0; t < c.tokens; ++t) {
    decoder.load(d, t);
    ASSERT_TRUE(hsa_stream_step(s).ok());
    for (int64_t row = 0; row < c.batch * c.heads; ++row)
      for (int x = 0; x < c.value_size; ++x)
        ASSERT_NEAR(decoder.out[row * c.value_size + x], d.out(row / c.heads, row % c.heads, t, x), 1e-11)
            << "token " << t;
  }
  decoder.lengths.back() = int64_t{1} << 40;
  const std::string expected = "capacity: sequence " + std::to_string(c.batch - 1) + " needs";
  EXPECT_NE(hsa_stream_step(s).message().find(expected), std::string::npos);
}

// Counts by the definition: what a token sees, what that costs, what a cache holds.
TEST(HsaStreamCost, CountsWhatEveryTokenSees) {
  for (int branching : {2, 3, 16}) {
    for (int near : {1, 2, 3, 1000}) {
      int64_t pairs = 0;
      for (int64_t t = 0; t < 300; ++t) {
        EXPECT_EQ(hsa_stream_cost(t, branching, near), pairs) << "branching " << branching << ", " << t << " tokens";
        int64_t seen = 0;
        for (int64_t size = 1, height = 0; size <= t; size *= branching, ++height) {
          const int64_t ancestor = t / size;
          for (int64_t node = 0; node < ancestor; ++node) {
            const bool close = ancestor / branching - node / branching < near;
            seen += close && (height == 0 || node <= ancestor - near);
          }
        }
        EXPECT_EQ(hsa_stream_entries(t, branching, near), seen);
        pairs += 1 + seen;
      }
    }
  }
  EXPECT_EQ(hsa_stream_entries(1048575, 16), 75);
  EXPECT_EQ(hsa_stream_slots(1000000, 16, 2), 32 + 32 + 32 + 32 + 15);
  EXPECT_EQ(hsa_stream_slots(1048576, 16, 2), 32 + 32 + 32 + 32 + 16 + 1);
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
  refuse([](auto& p) { p.near = 0; }, "near: expected 1 or more families, got 0");
  refuse([](auto& p) { p.levels = 9; }, "levels: expected 1 to 8, got 9");
  refuse([](auto& p) { p.levels = 2; }, "level_weights: expected a pointer");
  refuse([](auto& p) { p.key_heads = 2; }, "heads: expected a positive multiple of key_heads, got heads = 1");
  const float half[2] = {0.5f, 0.25f}, nan[2] = {0.5f, NAN}, whole[2] = {0.5f, 0.5f};
  refuse([&](auto& p) { p.levels = 2, p.level_weights = half; },
         "level_weights: expected weights that sum to 1, got 0.75");
  refuse([&](auto& p) { p.levels = 2, p.level_weights = nan; }, "level_weights: expected finite numbers");
  refuse([&](auto& p) { p.levels = 2, p.level_weights = whole; }, "q[1]: expected a pointer");
  HsaStreamGradients g = d.gradients();
  g.dweights = d.dweights.view();
  EXPECT_NE(hsa_stream_backward(d.problem(), d.outputs(), g).message().find("dweights: expected null"),
            std::string::npos);
}

}  // namespace
}  // namespace strata::test
