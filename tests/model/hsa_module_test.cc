// The HSA module in C++. The Python tests cover more and compare the two.
#include <gtest/gtest.h>

#include "model/hsa_attention.h"
#include "model/safetensors.h"
#include "torch/balanced.h"
#include "torch/expect_error.h"
#include "torch/hsa_op.h"

namespace strata {
namespace {

using torch::Tensor;

std::vector<HsaAttentionOptions> variants() {
  const HsaAttentionOptions base(16, 2);
  return {base,
          HsaAttentionOptions(base).l2_energy(true).normalize(true),
          HsaAttentionOptions(base).positions("bias").causal(true),
          HsaAttentionOptions(base).positions("learned"),
          HsaAttentionOptions(base).streaming(true).branching(3),
          HsaAttentionOptions(base).streaming(true).branching(4).positions("bias").tables(3).places(4).l2_energy(true)};
}

HsaAttention make(const HsaAttentionOptions& options) {
  torch::manual_seed(5);
  HsaAttention module(options);
  module->to(torch::kFloat64);
  torch::NoGradGuard no_grad;
  for (Tensor& p : module->parameters()) p.add_(0.2 * torch::randn_like(p));
  return module;
}

TEST(HsaAttention, EveryParameterGetsAGradientAndClonesAreIndependent) {
  for (const auto& options : variants()) {
    HsaAttention module = make(options);
    const Tensor x = torch::randn({2, 11, 16}, torch::kFloat64);
    const std::vector<Tensor> trees =
        options.streaming() ? std::vector<Tensor>{} : std::vector<Tensor>{balanced(11, 3), balanced(11, 4)};
    const Tensor y = module->forward(x, trees);
    y.sin().sum().backward();
    for (const auto& item : module->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key() << " of " << *module;
    }
    auto copy = std::dynamic_pointer_cast<HsaAttentionImpl>(module->clone());
    EXPECT_TRUE(torch::equal(copy->forward(x, trees), y));
  }
}

TEST(HsaAttention, PackedStreamsEqualSingleOnes) {
  std::vector<HsaAttentionOptions> all = variants();
  all.push_back(HsaAttentionOptions(16, 2).streaming(true).branching(3).rotary(4).key_heads(1));
  for (const auto& options : all) {
    if (!options.streaming()) continue;
    HsaAttention module = make(options);
    const Tensor x = torch::randn({1, 33, 16}, torch::kFloat64), ends = torch::tensor({0, 13, 13, 30, 33});
    const Tensor packed = module->forward(x, {}, c10::nullopt, ends);
    for (int64_t n = 0; n < 4; ++n) {
      const int64_t first = ends[n].item<int64_t>(), tokens = ends[n + 1].item<int64_t>() - first;
      if (tokens == 0) continue;
      const Tensor alone = module->forward(x.narrow(1, first, tokens));
      EXPECT_TRUE(torch::allclose(packed.narrow(1, first, tokens), alone, 1e-10, 1e-12)) << *module << ", " << n;
    }
    EXPECT_TRUE(torch::equal(module->forward(x, {}, c10::nullopt, ends, /*max_seqlen=*/17), packed));
  }
  HsaAttention tree = make(HsaAttentionOptions(16, 2));
  expect_error(
      [&] {
        tree->forward(torch::zeros({1, 9, 16}, torch::kFloat64), {balanced(9, 3)}, c10::nullopt, torch::tensor({0, 9}));
      },
      "cu_seqlens: expected none with trees");
}

TEST(HsaAttention, DropoutIsForTrainingAndForStreams) {
  HsaAttention module = make(HsaAttentionOptions(16, 2).streaming(true).branching(4).attention_dropout(0.5));
  const Tensor x = torch::randn({2, 40, 16}, torch::kFloat64);
  torch::manual_seed(3);
  const Tensor first = module->forward(x);
  EXPECT_FALSE(torch::equal(module->forward(x), first));
  torch::manual_seed(3);
  EXPECT_TRUE(torch::equal(module->forward(x), first));
  module->eval();
  EXPECT_TRUE(torch::equal(module->forward(x), module->forward(x)));
  expect_error([] { HsaAttention(HsaAttentionOptions(16, 2).attention_dropout(0.5)); },
               "attention_dropout: expected 0 with trees");
  expect_error([] { HsaAttention(HsaAttentionOptions(16, 2).streaming(true).attention_dropout(1.0)); },
               "attention_dropout: expected a probability");
}

TEST(HsaAttention, DecodingEqualsTheParallelForm) {
  for (const auto& options : variants()) {
    if (!options.streaming()) continue;
    HsaAttention module = make(options);
    const Tensor x = torch::randn({2, 70, 16}, torch::kFloat64);
    const Tensor want = module->forward(x);
    HsaStreamCache cache = module->start_stream(2);
    for (int64_t t = 0; t < 70; ++t) {
      if (t == 33) {  // saved and restored in the middle
        const std::string path = testing::TempDir() + "/stream.safetensors";
        save_safetensors(path, cache.state());
        cache = HsaStreamCache::from_state(load_safetensors(path).tensors);
      }
      EXPECT_TRUE(torch::allclose(module->step(x.select(1, t), cache), want.select(1, t), 1e-10, 1e-12)) << t;
    }
  }
}

TEST(HsaAttention, MistakesAreNamed) {
  auto refuse = [](const HsaAttentionOptions& options, const std::string& words) {
    expect_error([&] { HsaAttention module(options); }, words);
  };
  refuse(HsaAttentionOptions(10, 4), "multiple of heads");
  refuse(HsaAttentionOptions(16, 4).positions("rotary"), "positions: expected none, sinusoidal, learned or bias");
  refuse(HsaAttentionOptions(16, 4).branching(1), "branching: expected 2 to 64");
  refuse(HsaAttentionOptions(16, 4).streaming(true).positions("bias").places(8), "places: expected 16 like branching");
  HsaAttention module(HsaAttentionOptions(16, 4));
  expect_error([&] { module->forward(torch::zeros({2, 3, 16})); }, "trees: expected one per sequence");
  expect_error([&] { module->forward(torch::zeros({2, 3, 16}), {balanced(3, 2)}); }, "one per sequence (2)");
  expect_error(
      [&] {
        module->forward(torch::zeros({1, 3, 16}), {torch::zeros({4})});
      },
      "trees[0]: expected a contiguous int32");
  expect_error([&] { module->start_stream(1); }, "expected the streaming form");
  expect_error([&] { HsaStreamCache::from_state({}); }, "expected a tensor named \"keys\"");
}

}  // namespace
}  // namespace strata
