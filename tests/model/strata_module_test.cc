// Strata attention as a module: its corners are the other modules, decoding equals the parallel form, packed sequences
// equal single ones; rotary positions.
#include <gtest/gtest.h>

#include "model/hkt_cache.h"
#include "model/rotary.h"
#include "model/safetensors.h"
#include "model/strata_attention.h"
#include "torch/balanced.h"
#include "torch/expect_error.h"

namespace strata {
namespace {

using torch::Tensor;

HktAttentionOptions pyramid(int64_t levels) { return HktAttentionOptions(16, 4).levels(levels); }

StrataAttentionOptions options(int64_t levels, StrataForm form) {
  return StrataAttentionOptions(16, 4).pyramid(pyramid(levels)).form(form).branching(3);
}

template <class Module>
Module shaken(Module module) {
  torch::manual_seed(5);
  module->to(torch::kFloat64);
  torch::NoGradGuard no_grad;
  for (Tensor& p : module->parameters()) p.add_(0.2 * torch::randn_like(p));
  return module;
}

// The parameters of one module into another, by name.
template <class From, class To>
void copy_parameters(const From& from, To& to) {
  torch::NoGradGuard no_grad;
  const auto source = from->named_parameters();
  for (auto& item : to->named_parameters())
    if (source.contains(item.key())) item.value().copy_(source[item.key()]);
}

std::vector<StrataAttentionOptions> variants() {
  std::vector<StrataAttentionOptions> all;
  for (StrataForm form : {StrataForm::kTree, StrataForm::kStreaming, StrataForm::kBothSides}) {
    all.push_back(options(3, form));
    all.push_back(options(2, form).positions("bias").tables(3).places(4));
    all.push_back(options(3, form).pyramid(pyramid(3).rotary(4).key_heads(2).input_filter(true)));
    all.push_back(
        options(3, form).near(1).pyramid(pyramid(3).rotary(2).dense_filters(true).per_level_projections(true)));
  }
  return all;
}

TEST(StrataAttention, EveryParameterGetsAGradientAndClonesAreIndependent) {
  for (const StrataAttentionOptions& o : variants()) {
    StrataAttention module = shaken(StrataAttention(o));
    const Tensor x = torch::randn({2, 23, 16}, torch::kFloat64);
    const bool tree = o.form() == StrataForm::kTree;
    const std::vector<Tensor> trees =
        tree ? std::vector<Tensor>{balanced(23, 3), balanced(23, 4)} : std::vector<Tensor>{};
    const Tensor y = module->forward(x, trees);
    y.sin().sum().backward();
    for (const auto& item : module->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key() << " of " << *module;
    }
    auto copy = std::dynamic_pointer_cast<StrataAttentionImpl>(module->clone());
    EXPECT_TRUE(torch::equal(copy->forward(x, trees), y));
    torch::NoGradGuard no_grad;
    copy->parameters()[0].zero_();
    EXPECT_TRUE(torch::equal(module->forward(x, trees), y));
  }
}

TEST(StrataAttention, CornersAreTheOtherModules) {
  const Tensor x = torch::randn({2, 40, 16}, torch::kFloat64);
  // Neighbours without end, and a star: HKT.
  for (bool causal : {false, true}) {
    HktAttention hkt = shaken(HktAttention(pyramid(3).causal(causal)));
    const auto form = causal ? StrataForm::kStreaming : StrataForm::kBothSides;
    StrataAttention module(options(3, form).near(1000));
    module->to(torch::kFloat64);
    copy_parameters(hkt, module);
    EXPECT_TRUE(torch::allclose(module->forward(x), hkt->forward(x), 1e-10, 1e-12));
  }
  HktAttention hkt = shaken(HktAttention(pyramid(3)));
  StrataAttention star(options(3, StrataForm::kTree));
  star->to(torch::kFloat64);
  copy_parameters(hkt, star);
  const std::vector<Tensor> stars = {balanced(40, 64), balanced(40, 64)};
  EXPECT_TRUE(torch::allclose(star->forward(x, stars), hkt->forward(x), 1e-10, 1e-12));
  // One level: HSA and streaming HSA.
  HsaAttention hsa = shaken(HsaAttention(HsaAttentionOptions(16, 4)));
  HsaAttention streaming = shaken(HsaAttention(HsaAttentionOptions(16, 4).streaming(true).branching(3)));
  StrataAttention tree(options(1, StrataForm::kTree)), stream(options(1, StrataForm::kStreaming).near(1));
  tree->to(torch::kFloat64), stream->to(torch::kFloat64);
  copy_parameters(hsa, tree), copy_parameters(streaming, stream);
  const std::vector<Tensor> trees = {balanced(40, 3), balanced(40, 5)};
  EXPECT_TRUE(torch::allclose(tree->forward(x, trees), hsa->forward(x, trees), 1e-10, 1e-12));
  EXPECT_TRUE(torch::allclose(stream->forward(x), streaming->forward(x), 1e-10, 1e-12));
}

TEST(StrataAttention, DecodingEqualsTheParallelForm) {
  for (const StrataAttentionOptions& o : variants()) {
    if (o.form() != StrataForm::kStreaming) continue;
    StrataAttention module = shaken(StrataAttention(o));
    const Tensor x = torch::randn({2, 70, 16}, torch::kFloat64), want = module->forward(x);
    for (int64_t prompt : {0, 1, 9, 30}) {  // from an empty cache, and behind prompts of different lengths
      const int64_t shorter = prompt * 2 / 3;
      auto [out, cache] = module->prefill(x.narrow(1, 0, prompt), torch::tensor({prompt, shorter}));
      if (prompt > 0) {
        EXPECT_TRUE(torch::allclose(out[0], want[0].narrow(0, 0, prompt), 1e-10, 1e-12));
      }
      for (int64_t step = 0; step < 40; ++step) {
        if (step == 21) {  // saved and restored in the middle
          const std::string path = testing::TempDir() + "/strata_stream.safetensors";
          save_safetensors(path, cache.state());
          cache = StrataCache::from_state(load_safetensors(path).tensors);
        }
        const Tensor rows = torch::stack({x[0][prompt + step], x[1][shorter + step]});
        const Tensor expected = torch::stack({want[0][prompt + step], want[1][shorter + step]});
        ASSERT_TRUE(torch::allclose(module->step(rows, cache), expected, 1e-9, 1e-11))
            << *module << ", prompt of " << prompt << ", step " << step;
      }
    }
  }
}

TEST(StrataAttention, PackedAndPaddedSequencesEqualSingleOnes) {
  for (const StrataAttentionOptions& o : variants()) {
    if (o.form() != StrataForm::kTree) continue;
    StrataAttention module = shaken(StrataAttention(o));
    const std::vector<Tensor> trees = {balanced(13, 3), balanced(6, 3), balanced(1, 3)};
    const Tensor x = torch::randn({1, 20, 16}, torch::kFloat64), packed = module->forward(x, trees);
    int64_t first = 0;
    for (int64_t n = 0; n < 3; ++n) {
      const int64_t tokens = trees[n][0].item<int32_t>();
      const Tensor own = x.narrow(1, first, tokens);
      EXPECT_TRUE(torch::allclose(packed.narrow(1, first, tokens), module->forward(own, {trees[n]}), 1e-10, 1e-12));
      const Tensor padded = torch::cat({own, torch::full({1, 4, 16}, 7.0, torch::kFloat64)}, 1);
      EXPECT_TRUE(torch::allclose(module->forward(padded, {trees[n]}).narrow(1, 0, tokens),
                                  module->forward(own, {trees[n]}), 1e-10, 1e-12));
      first += tokens;
    }
  }
}

TEST(StrataAttention, HiddenTokensChangeNothing) {
  StrataAttention module = shaken(StrataAttention(options(3, StrataForm::kBothSides)));
  Tensor x = torch::randn({1, 30, 16}, torch::kFloat64), weights = torch::ones({1, 30}, torch::kFloat64);
  weights[0].narrow(0, 22, 8).zero_();
  const Tensor before = module->forward(x, {}, weights);
  x[0].narrow(0, 22, 8).fill_(std::nan(""));
  EXPECT_TRUE(torch::equal(module->forward(x, {}, weights), before));
}

TEST(StrataAttention, MistakesAreNamed) {
  auto refuse = [](const StrataAttentionOptions& o, const std::string& words) {
    expect_error([&] { StrataAttention module(o); }, words);
  };
  const StrataForm streaming = StrataForm::kStreaming;
  refuse(options(3, streaming).near(0), "near: expected 1 to 2^20 families, got 0");
  refuse(options(3, streaming).branching(65), "branching: expected 2 to 64, got 65");
  refuse(options(3, streaming).positions("rotary"), "positions: expected none or bias, got \"rotary\"");
  refuse(options(9, streaming), "levels: expected 1 to 8, got 9");
  refuse(options(3, streaming).pyramid(pyramid(3).psd(true)), "psd: expected false");
  refuse(options(3, streaming).pyramid(pyramid(3).rotary(6)), "rotary: expected an even number of channels");
  StrataAttention module(options(3, streaming)), other(options(3, streaming).near(3)),
      tree(options(3, StrataForm::kTree));
  const Tensor x = torch::randn({2, 5, 16});
  expect_error([&] { tree->forward(x); }, "trees: expected one per sequence, got none");
  expect_error(
      [&] {
        module->forward(x, {balanced(5, 2), balanced(5, 2)});
      },
      "trees: expected none but in the tree form");
  expect_error([&] { tree->start_stream(1); }, "prefill: expected the streaming form");
  StrataCache cache = module->start_stream(2);
  expect_error([&] { other->step(x.select(1, 0), cache); }, "cache: expected 3 levels, near = 3 and branching = 3");
  expect_error([&] { module->step(x, cache); }, "x: expected shape (2, 16)");
  expect_error([&] { module->prefill(x, torch::tensor({5, 6})); }, "lengths: expected 0 to 5");
  expect_error([&] { StrataCache::from_state({}); }, "expected a tensor named \"keys\"");
}

// Against complex numbers, and the identity that scores depend on differences of positions.
TEST(Rotary, RotatesPairsOfChannels) {
  torch::manual_seed(3);
  const Tensor q = torch::randn({2, 3, 7, 10}, torch::kFloat64), k = torch::randn({2, 3, 7, 10}, torch::kFloat64);
  const Tensor place = torch::arange(7);
  const Tensor rotated = rotate(q, place, 6, 100.0);
  for (int64_t n = 0; n < 7; ++n) {
    for (int64_t c = 0; c < 3; ++c) {
      const double angle = static_cast<double>(n) * std::pow(100.0, -2.0 * static_cast<double>(c) / 6);
      const std::complex<double> turn(std::cos(angle), std::sin(angle));
      const std::complex<double> before(q[1][2][n][c].item<double>(), q[1][2][n][c + 3].item<double>());
      const std::complex<double> after(rotated[1][2][n][c].item<double>(), rotated[1][2][n][c + 3].item<double>());
      EXPECT_LT(std::abs(before * turn - after), 1e-14);
    }
  }
  EXPECT_TRUE(torch::equal(rotated.narrow(3, 6, 4), q.narrow(3, 6, 4)));
  auto scores = [&](int64_t shift) {
    return torch::matmul(rotate(q, place + shift, 10), rotate(k, place + shift, 10).transpose(2, 3));
  };
  EXPECT_TRUE(torch::allclose(scores(0), scores(1000), 1e-9, 1e-11));
  EXPECT_FALSE(torch::allclose(scores(0), torch::matmul(q, k.transpose(2, 3)), 1e-2, 1e-2));
  expect_error([&] { rotate(q, place, 5); }, "rotary: expected an even number of channels, at most 10, got 5");
}

// Flat attention and HSA with one family are the same, in parallel and step by step.
TEST(Rotary, FlatAttentionAndOneFamilyAgree) {
  HktAttention hkt = shaken(HktAttention(pyramid(1).rotary(4).causal(true)));
  HsaAttention hsa = shaken(HsaAttention(HsaAttentionOptions(16, 4).rotary(4).streaming(true).branching(64)));
  copy_parameters(hkt, hsa);
  const Tensor x = torch::randn({2, 30, 16}, torch::kFloat64), want = hkt->forward(x);
  EXPECT_TRUE(torch::allclose(hsa->forward(x), want, 1e-10, 1e-12));  // one family: softmax
  HsaStreamCache cache = hsa->start_stream(2);
  auto [out, hkt_cache] = hkt->prefill(x.narrow(1, 0, 10), torch::tensor({10, 7}));
  for (int64_t t = 0; t < 20; ++t) {
    EXPECT_TRUE(torch::allclose(hsa->step(x.select(1, t), cache), want.select(1, t), 1e-10, 1e-12));
    const Tensor rows = torch::stack({x[0][10 + t], x[1][7 + t]});
    EXPECT_TRUE(
        torch::allclose(hkt->step(rows, hkt_cache), torch::stack({want[0][10 + t], want[1][7 + t]}), 1e-10, 1e-12));
  }
}

}  // namespace
}  // namespace strata
