// The torch operators: agreement with the composed definition, gradients, meta kernels, errors.
#include "torch/hkt_op.h"

#include <gtest/gtest.h>

#include "base/check_count.h"
#include "torch/composed.h"
#include "torch/expect_error.h"

namespace strata {
namespace {

using torch::Tensor;

struct Inputs {
  std::vector<Tensor> q, k;
  Tensor v, weights;
};

Inputs make_inputs(int64_t B, int64_t H, int64_t Hk, int64_t T, int64_t L, int64_t d, int64_t dv,
                   torch::TensorOptions options = torch::kFloat64) {
  torch::manual_seed(7);
  Inputs in;
  for (int64_t l = 0; l < L; ++l) {
    const int64_t rows = (T + (int64_t{1} << l) - 1) >> l;
    in.q.push_back(torch::randn({B, H, rows, d}, options).set_requires_grad(true));
    in.k.push_back(torch::randn({B, Hk, rows, d}, options).set_requires_grad(true));
  }
  in.v = torch::randn({B, Hk, T, dv}, options).set_requires_grad(true);
  const auto compute = options.dtype() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  in.weights = torch::softmax(torch::randn({H, L}, compute), -1).detach().set_requires_grad(true);
  return in;
}

std::vector<Tensor> all_of(const Inputs& in) {
  std::vector<Tensor> all = in.q;
  all.insert(all.end(), in.k.begin(), in.k.end());
  all.insert(all.end(), {in.v, in.weights});
  return all;
}

TEST(HktOp, ValuesAndGradientsEqualTheComposedDefinition) {
  for (bool causal : {false, true}) {
    for (int64_t T : {1, 6, 37, 130}) {
      const Inputs in = make_inputs(2, 4, 2, T, 3, 8, 6);
      HktOptions options;
      options.causal = causal;
      const Tensor bias = torch::randn({1, 4, T, T}, torch::kFloat64).set_requires_grad(true);
      options.bias = bias;
      options.lengths = torch::tensor({T, (T + 1) / 2}, torch::kLong);
      auto wanted = all_of(in);
      wanted.push_back(bias);

      const auto [out, lse] = hkt_attention(in.q, in.k, in.v, in.weights, options);
      const Tensor out2 = composed_hkt(in.q, in.k, in.v, in.weights, options);
      const Tensor lse2 = torch::logsumexp(composed_scores(in.q, in.k, in.weights, options), -1);
      EXPECT_TRUE(torch::allclose(out, out2, 1e-10, 1e-12));
      const Tensor real = torch::isfinite(lse2);
      EXPECT_TRUE(torch::equal(real, torch::isfinite(lse)));
      EXPECT_TRUE(torch::allclose(lse.masked_select(real), lse2.masked_select(real), 1e-10, 1e-12));

      const Tensor r = torch::randn_like(out), s = torch::randn_like(lse);
      auto loss = [&](const Tensor& o, const Tensor& l) {
        return (o * r).sum() + (l.masked_select(real) * s.masked_select(real)).sum();
      };
      const auto got = torch::autograd::grad({loss(out, lse)}, wanted);
      const auto want = torch::autograd::grad({loss(out2, lse2)}, wanted);
      for (size_t at = 0; at < got.size(); ++at) {
        EXPECT_TRUE(torch::allclose(got[at], want[at], 1e-9, 1e-11)) << "gradient " << at << ", T = " << T;
      }
    }
  }
}

TEST(HktOp, BiasBroadcastsAsTorchDoes) {
  const Inputs in = make_inputs(2, 4, 4, 9, 2, 4, 4);
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{9, 9}, {4, 1, 9}, {2, 1, 1, 9}, {2, 4, 9, 9}, {1}, {9, 1}}) {
    const Tensor bias = torch::randn(shape, torch::kFloat64).set_requires_grad(true);
    HktOptions options;
    options.bias = bias;
    const Tensor out = std::get<0>(hkt_attention(in.q, in.k, in.v, in.weights, options));
    const Tensor want = composed_hkt(in.q, in.k, in.v, in.weights, options);
    EXPECT_TRUE(torch::allclose(out, want, 1e-10, 1e-12));
    const Tensor r = torch::randn_like(out);
    const Tensor got_grad = torch::autograd::grad({(out * r).sum()}, {bias})[0];
    const Tensor want_grad = torch::autograd::grad({(want * r).sum()}, {bias})[0];
    EXPECT_TRUE(torch::allclose(got_grad, want_grad, 1e-9, 1e-11)) << shape;
  }
}

TEST(HktOp, TokenMajorInputsGiveTokenMajorOutputs) {
  Inputs in = make_inputs(2, 3, 3, 10, 2, 4, 4);
  auto token_major = [](const Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); };
  const Tensor dense = std::get<0>(hkt_attention(in.q, in.k, in.v, in.weights));
  for (auto* list : {&in.q, &in.k})
    for (Tensor& t : *list) t = token_major(t);
  const Tensor out = std::get<0>(hkt_attention(in.q, in.k, token_major(in.v), in.weights));
  EXPECT_TRUE(torch::equal(out, dense));
  EXPECT_TRUE(out.transpose(1, 2).is_contiguous());
}

TEST(HktOp, MetaKernelsGiveTheShapes) {
  const Inputs real = make_inputs(2, 4, 2, 13, 3, 8, 6);
  Inputs in;
  for (const Tensor& t : real.q) in.q.push_back(t.detach().to(torch::kMeta).set_requires_grad(true));
  for (const Tensor& t : real.k) in.k.push_back(t.detach().to(torch::kMeta).set_requires_grad(true));
  in.v = real.v.detach().to(torch::kMeta).set_requires_grad(true);
  in.weights = real.weights.detach().to(torch::kMeta).set_requires_grad(true);
  const auto [out, lse] = hkt_attention(in.q, in.k, in.v, in.weights);
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{2, 4, 13, 6}));
  EXPECT_EQ(lse.sizes(), (std::vector<int64_t>{2, 4, 13}));
  EXPECT_TRUE(out.is_meta());
  const auto gradients = torch::autograd::grad({out.sum()}, all_of(in));
  for (size_t at = 0; at < gradients.size(); ++at) EXPECT_EQ(gradients[at].sizes(), all_of(in)[at].sizes());
}

TEST(HktOp, EmptyBatchAndNoTokens) {
  for (const auto& [B, T] : {std::pair{0, 5}, std::pair{2, 0}}) {
    const Inputs in = make_inputs(B, 2, 2, T, 2, 4, 4, torch::kFloat32);
    const auto [out, lse] = hkt_attention(in.q, in.k, in.v, in.weights);
    EXPECT_EQ(out.sizes(), (std::vector<int64_t>{B, 2, T, 4}));
    const auto gradients = torch::autograd::grad({out.sum()}, all_of(in));
    EXPECT_TRUE(torch::equal(gradients.back(), torch::zeros({2, 2})));
  }
}

TEST(HktOp, BFloat16KeepsItsType) {
  const Inputs in = make_inputs(1, 2, 2, 40, 2, 16, 16, torch::kBFloat16);
  const auto [out, lse] = hkt_attention(in.q, in.k, in.v, in.weights);
  EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(lse.scalar_type(), torch::kFloat32);
  const auto gradients = torch::autograd::grad({out.sum()}, all_of(in));
  EXPECT_EQ(gradients[0].scalar_type(), torch::kBFloat16);
  EXPECT_EQ(gradients.back().scalar_type(), torch::kFloat32);
}

TEST(HktOp, DoubleBackwardIsRefusedOnlyWhenItIsAskedFor) {
  const Inputs in = make_inputs(1, 1, 1, 5, 2, 3, 3);
  const Tensor out = std::get<0>(hkt_attention(in.q, in.k, in.v, in.weights));
  const Tensor first = torch::autograd::grad({out.sin().sum()}, {in.v}, {}, true, /*create_graph=*/true)[0];
  EXPECT_EQ(first.sizes(), in.v.sizes());
  expect_error([&] { torch::autograd::grad({first.sum()}, {in.v}); }, "cannot be differentiated twice");
}

TEST(HktOp, MistakesAreNamed) {
  auto call = [](auto change, const std::string& words) {
    Inputs in = make_inputs(2, 4, 2, 6, 2, 4, 4, torch::kFloat32);
    HktOptions options;
    change(in, options);
    expect_error([&] { hkt_attention(in.q, in.k, in.v, in.weights, options); }, words);
  };
  call([](Inputs& in, HktOptions&) { in.q.clear(); }, "q: expected a list of 1 to 8 tensors");
  call([](Inputs& in, HktOptions&) { in.k.pop_back(); }, "k: expected as many levels as q (2), got 1");
  call([](Inputs& in, HktOptions&) { in.v = in.v[0]; }, "v: expected 4 dimensions");
  call([](Inputs& in, HktOptions&) { in.q[0] = in.q[0].narrow(2, 0, 4); }, "q[1]: expected shape [2, 4, 2, 4]");
  call([](Inputs&, HktOptions& o) { o.cu_seqlens = torch::tensor({0, 6}); }, "expected a batch of 1 with cu_seqlens");
  call([](Inputs&, HktOptions& o) { o.slopes = torch::ones({3}); }, "slopes: expected shape [4]");
  call([](Inputs&, HktOptions& o) { o.dropout = 1.5; }, "dropout: expected a probability from 0 to 0.9999");
  call([](Inputs& in, HktOptions&) { in.q[1] = in.q[1].narrow(2, 0, 2); }, "q[1]: expected shape [2, 4, 3, 4]");
  call([](Inputs& in, HktOptions&) { in.k[0] = in.k[0].to(torch::kFloat64); }, "k[0]: expected Float");
  call([](Inputs& in, HktOptions&) { in.v = in.v.to(torch::kHalf); }, "v: expected float32, float64 or bfloat16");
  call(
      [](Inputs& in, HktOptions&) {
        in.v = in.v.narrow(1, 0, 1).expand({2, 3, 6, 4});
      },
      "multiple of the 3 key heads");
  call([](Inputs& in, HktOptions&) { in.weights = in.weights.narrow(1, 0, 1); }, "weights: expected shape [4, 2]");
  call([](Inputs& in, HktOptions&) { in.weights = in.weights.to(torch::kFloat64); }, "weights: expected Float");
  call([](Inputs& in, HktOptions&) { in.weights = in.weights / 0.0; }, "weights: expected finite numbers, got inf");
  call([](Inputs& in, HktOptions&) { in.k[1] = in.k[1].detach().to(torch::kMeta); }, "k[1]: expected it on cpu");
  call([](Inputs&, HktOptions& o) { o.lengths = torch::tensor({7, 1}); }, "lengths: expected 0 to tokens = 6, got 7");
  call([](Inputs&, HktOptions& o) { o.lengths = torch::tensor({1.5, 1.0}); }, "lengths: expected integers");
  call([](Inputs&, HktOptions& o) { o.lengths = torch::tensor({1, 1, 1}); }, "lengths: expected shape [2]");
  call([](Inputs&, HktOptions& o) { o.bias = torch::zeros({5, 6}); }, "bias: expected a shape that broadcasts");
  call([](Inputs&, HktOptions& o) { o.bias = torch::zeros({6, 6}, torch::kFloat64); }, "bias: expected Float");
  call([](Inputs&, HktOptions& o) { o.scale = std::nan(""); }, "scale: expected a finite number");
}

// One check of the tensors and one of the problem, forward and backward.
TEST(HktOp, ArgumentsAreCheckedOnce) {
  const Inputs in = make_inputs(2, 2, 1, 9, 3, 4, 4);
  int64_t before = argument_checks();
  const Tensor out = std::get<0>(hkt_attention(in.q, in.k, in.v, in.weights));
  EXPECT_EQ(argument_checks() - before, 2);
  before = argument_checks();
  torch::autograd::grad({out.sum()}, {in.v});  // on the CPU in this thread
  EXPECT_EQ(argument_checks() - before, 2);
  const torch::NoGradGuard no_grad;
  before = argument_checks();
  hkt_attention(in.q, in.k, in.v, in.weights);
  EXPECT_EQ(argument_checks() - before, 2);
}

TEST(CausalFilterOp, GradientsEqualTheComposedOnes) {
  torch::manual_seed(4);
  const Tensor x = torch::randn({2, 37, 6}, torch::kFloat64).set_requires_grad(true);
  for (int64_t stride : {1, 2}) {
    const Tensor w = torch::randn({3, 6}, torch::kFloat64).set_requires_grad(true);
    Tensor composed = torch::zeros({2, (37 + stride - 1) / stride, 6}, torch::kFloat64);
    const Tensor padded = torch::constant_pad_nd(x, {0, 0, 2, 0});
    for (int64_t r = 0; r < 3; ++r) composed = composed + padded.slice(1, 2 - r, 39 - r, stride) * w[r];
    const Tensor y = causal_filter(x.transpose(0, 1).contiguous().transpose(0, 1), w, stride);
    EXPECT_TRUE(torch::allclose(y, composed));
    const auto got = torch::autograd::grad({y.sin().sum()}, {x, w});
    const auto want = torch::autograd::grad({composed.sin().sum()}, {x, w});
    for (int i : {0, 1}) EXPECT_TRUE(torch::allclose(got[i], want[i]));
  }
  // Mixed types are promoted, as products of tensors are.
  const Tensor mixed = causal_filter(torch::ones({1, 4, 6}, torch::kBFloat16), torch::ones({3, 6}), 2);
  EXPECT_EQ(mixed.scalar_type(), torch::kFloat32);
}

TEST(CausalFilterOp, EqualsTheSum) {
  torch::manual_seed(3);
  const Tensor x = torch::randn({2, 7, 3}, torch::kFloat64);
  for (int64_t stride : {1, 2}) {
    for (bool dense : {false, true}) {
      const Tensor w =
          torch::randn(dense ? std::vector<int64_t>{4, 3, 3} : std::vector<int64_t>{4, 3}, torch::kFloat64);
      const Tensor y = causal_filter(x, w, stride);
      for (int64_t m = 0; m < y.size(1); ++m) {
        Tensor want = torch::zeros({2, 3}, torch::kFloat64);
        for (int64_t r = 0; r < 4 && stride * m - r >= 0; ++r) {
          const Tensor in = x.select(1, stride * m - r);
          want += dense ? in.matmul(w[r].t()) : in * w[r];
        }
        EXPECT_TRUE(torch::allclose(y.select(1, m), want));
      }
    }
  }
  EXPECT_EQ(causal_filter(torch::zeros({2, 0, 3}), torch::ones({2, 3}), 2).sizes(), (std::vector<int64_t>{2, 0, 3}));
  expect_error([&] { causal_filter(x, torch::zeros({4, 5}, torch::kFloat64), 2); }, "weight: expected shape (taps, 3)");
  expect_error([&] { causal_filter(x, torch::zeros({4, 3}, torch::kFloat64), 3); }, "stride: expected 1 or 2, got 3");
}

}  // namespace
}  // namespace strata
