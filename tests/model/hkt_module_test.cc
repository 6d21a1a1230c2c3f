// The HktAttention module: every option against its definition, causality and padding end to end, decoding.
#include <gtest/gtest.h>

#include "model/hkt_attention.h"
#include "model/hkt_cache.h"
#include "model/safetensors.h"
#include "torch/composed.h"
#include "torch/expect_error.h"

namespace strata {
namespace {

using torch::Tensor;

// Options that together switch everything on and off.
std::vector<HktAttentionOptions> variants() {
  const HktAttentionOptions base(16, 4);
  return {
      base,
      HktAttentionOptions(base).levels(1),
      HktAttentionOptions(base).levels(4).taps(1),
      HktAttentionOptions(base).dense_filters(true).taps(2),
      HktAttentionOptions(base).input_filter(true).projection_bias(true),
      HktAttentionOptions(base).per_level_projections(true).key_heads(2),
      HktAttentionOptions(base).psd(true),
      HktAttentionOptions(base).psd(true).per_level_projections(true).dense_filters(true).input_filter(true),
  };
}

HktAttention make(HktAttentionOptions options, bool causal = true) {
  torch::manual_seed(5);
  HktAttention module(options.causal(causal));
  module->to(torch::kFloat64);
  torch::NoGradGuard no_grad;
  for (Tensor& p : module->parameters()) p.add_(0.3 * torch::randn_like(p));  // away from any special start
  return module;
}

TEST(HktAttention, PackedSequencesAreAsAlone) {
  for (const auto& options : variants()) {
    HktAttention module = make(HktAttentionOptions(options).rotary(options.psd() ? 0 : 2).window_left(6).alibi(true));
    const std::vector<int64_t> lengths = {9, 1, 16, 5};
    const Tensor x = torch::randn({1, 31, 16}, torch::kFloat64).set_requires_grad(true);
    std::vector<Tensor> alone;
    for (const Tensor& part : x.split_with_sizes(lengths, 1)) alone.push_back(module->forward(part));
    const Tensor want = torch::cat(alone, 1);
    const Tensor got = module->attend(x, HktInput().cu_seqlens(torch::tensor({0, 9, 10, 26, 31})).max_seqlen(16));
    EXPECT_TRUE(torch::allclose(got, want, 1e-10, 1e-12)) << *module;
    const Tensor dy = torch::randn_like(got);
    EXPECT_TRUE(torch::allclose(torch::autograd::grad({got}, {x}, {dy})[0], torch::autograd::grad({want}, {x}, {dy})[0],
                                1e-9, 1e-11));
  }
}

TEST(HktAttention, KeysMayComeFromElsewhere) {
  HktAttention module = make(HktAttentionOptions(16, 4).key_heads(2), false);
  const Tensor x = torch::randn({2, 7, 16}, torch::kFloat64), memory = torch::randn({2, 12, 16}, torch::kFloat64);
  const Tensor lengths = torch::tensor({12, 5});
  const Tensor got = module->attend(x, HktInput().key(memory).key_lengths(lengths));
  Tensor changed = memory.clone();
  changed[1].slice(0, 5).fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(torch::equal(module->attend(x, HktInput().key(changed).key_lengths(lengths)), got));
  const Tensor alone = module->attend(x.slice(0, 1), HktInput().key(memory.slice(0, 1).slice(1, 0, 5)));
  EXPECT_TRUE(torch::allclose(got.slice(0, 1), alone));
  EXPECT_TRUE(torch::allclose(module->attend(x, HktInput().key(x)), module->forward(x)));
}

TEST(HktAttention, DropoutIsForTraining) {
  HktAttention module(HktAttentionOptions(16, 4).attention_dropout(0.5));
  const Tensor x = torch::randn({2, 20, 16});
  torch::manual_seed(3);
  const Tensor first = module->forward(x);
  EXPECT_FALSE(torch::equal(module->forward(x), first));
  torch::manual_seed(3);
  EXPECT_TRUE(torch::equal(module->forward(x), first));
  module->eval();
  EXPECT_TRUE(torch::equal(module->forward(x), module->forward(x)));
}

TEST(HktAttention, EqualsTheComposedModel) {
  for (const auto& options : variants()) {
    HktAttention module = make(options);
    const Tensor x = torch::randn({2, 11, 16}, torch::kFloat64);
    std::vector<Tensor> q, k;
    const auto states = module->pyramid(x);
    for (int64_t l = 0; l < options.levels(); ++l) {
      auto [query, key] = module->project(states[l], l);
      q.push_back(query);
      k.push_back(key);
    }
    auto parameters = module->named_parameters();
    auto linear = [&](const Tensor& input, const std::string& name) {
      return torch::nn::functional::linear(input, parameters[name + ".weight"],
                                           parameters.contains(name + ".bias") ? parameters[name + ".bias"] : Tensor());
    };
    const Tensor v = linear(states[0], "value").view({2, 11, k[0].size(1), 4}).transpose(1, 2);
    HktOptions causal;
    causal.causal = true;
    const Tensor mixed = composed_hkt(q, k, v, torch::softmax(parameters["level_logits"], -1), causal);
    const Tensor want = linear(mixed.transpose(1, 2).reshape({2, 11, 16}), "out");
    EXPECT_TRUE(torch::allclose(module->forward(x), want, 1e-10, 1e-12)) << *module;
  }
}

TEST(HktAttention, EveryParameterGetsAGradient) {
  for (const auto& options : variants()) {
    HktAttention module = make(options);
    module->forward(torch::randn({2, 11, 16}, torch::kFloat64)).sin().sum().backward();
    for (const auto& item : module->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      const bool single_level = item.key() == "level_logits" && options.levels() == 1;  // softmax of one number
      EXPECT_EQ(item.value().grad().abs().max().item<double>() > 0, !single_level) << item.key() << " of " << *module;
    }
  }
}

TEST(HktAttention, NeverLooksAhead) {
  for (const auto& options : variants()) {
    HktAttention module = make(options);
    const Tensor x = torch::randn({1, 19, 16}, torch::kFloat64);
    const Tensor clean = module->forward(x);
    for (int64_t t = 0; t < 19; ++t) {
      Tensor changed = x.clone();
      changed.select(1, t).add_(1.0);
      const Tensor dirty = module->forward(changed);
      EXPECT_TRUE(torch::equal(dirty.narrow(1, 0, t), clean.narrow(1, 0, t))) << "token " << t << " of " << *module;
      EXPECT_FALSE(torch::allclose(dirty.select(1, t), clean.select(1, t)));
    }
  }
}

TEST(HktAttention, PaddingNeverChangesRealRowsNorGradients) {
  for (bool causal : {false, true}) {
    for (const auto& options : variants()) {
      HktAttention module = make(options, causal);
      const Tensor x = torch::randn({1, 9, 16}, torch::kFloat64);
      const Tensor padded =
          torch::cat({x, torch::full({1, 8, 16}, std::nan(""), torch::kFloat64)}, 1);  // NaN: nothing may leak
      const Tensor want = module->forward(x);
      const Tensor got = module->forward(padded, torch::tensor({9}));
      EXPECT_TRUE(torch::allclose(got.narrow(1, 0, 9), want, 1e-12, 1e-13)) << *module;
      got.narrow(1, 0, 9).sum().backward();
      for (const Tensor& p : module->parameters()) EXPECT_TRUE(torch::isfinite(p.grad()).all().item<bool>());
    }
  }
}

// Proposition 3.1: sym(W_Q W_K^T) >= 0 in PSD mode whatever the parameters; an ordinary module breaks it.
TEST(HktAttention, PsdModeHasNoNegativeEigenvalue) {
  auto smallest = [](HktAttention module, int64_t head) {
    const Tensor identity = torch::eye(16, torch::kFloat64).unsqueeze(0);
    auto [q, k] = module->project(identity, 0);  // rows of W_Q and W_K: (1, H, 16, d)
    const Tensor M = q[0][head].matmul(k[0][head].t());
    const Tensor eigenvalues = torch::linalg_eigvalsh((M + M.t()) / 2);
    return (eigenvalues.min() / eigenvalues.abs().max()).item<double>();
  };
  HktAttention psd = make(HktAttentionOptions(16, 4).psd(true));
  HktAttention ordinary = make(HktAttentionOptions(16, 4));
  for (int64_t h = 0; h < 4; ++h) {
    EXPECT_GT(smallest(psd, h), -1e-12);
    EXPECT_LT(smallest(ordinary, h), -1e-3);
  }
  // And so is the symmetrised, unmasked score matrix over a real input, up-sampled and mixed.
  const Tensor x = torch::randn({1, 12, 16}, torch::kFloat64);
  const auto states = psd->pyramid(x);
  Tensor S = torch::zeros({12, 12}, torch::kFloat64);
  for (int64_t l = 0; l < 3; ++l) {
    auto [q, k] = psd->project(states[l], l);
    const Tensor level = q[0][1].matmul(k[0][1].t());
    S += psd->level_weights()[1][l] *
         level.repeat_interleave(1 << l, 0).repeat_interleave(1 << l, 1).narrow(0, 0, 12).narrow(1, 0, 12);
  }
  const Tensor eigenvalues = torch::linalg_eigvalsh((S + S.t()) / 2);
  EXPECT_GT(eigenvalues.min().item<double>(), -1e-12 * eigenvalues.max().item<double>());
}

// Proposition 3.4 (b): x = [content ; +-1 bits of the position], the stride-1 filter on the content, scores beta <bits,
// bits>: each token attends to itself alone, and the output is the causal convolution, in float32 to the last bit.
TEST(HktAttention, SubsumesCausalConvolution) {
  constexpr int64_t kContent = 6, kBits = 6, kModel = kContent + kBits, kTokens = 50, kTaps = 3;
  HktAttention module(
      HktAttentionOptions(kModel, 1).levels(1).taps(kTaps).input_filter(true).dense_filters(true).causal(true));
  torch::NoGradGuard no_grad;
  torch::manual_seed(9);
  auto p = module->named_parameters();
  const double beta = 104.0 / 2 * std::sqrt(static_cast<double>(kModel));
  const Tensor kernel = torch::randn({kTaps, kContent, kContent});
  Tensor filter = torch::zeros({kTaps, kModel, kModel});
  filter.narrow(1, 0, kContent).narrow(2, 0, kContent).copy_(kernel);
  filter[0].narrow(0, kContent, kBits).narrow(1, kContent, kBits).copy_(torch::eye(kBits));
  p["filter_0"].copy_(filter);
  Tensor bits_only = torch::zeros({kModel, kModel});
  bits_only.narrow(0, kContent, kBits).narrow(1, kContent, kBits).copy_(torch::eye(kBits));
  p["query.weight"].copy_(beta * bits_only);
  p["key.weight"].copy_(bits_only);
  p["value.weight"].copy_(torch::eye(kModel) - bits_only);
  p["out.weight"].copy_(torch::eye(kModel));

  const Tensor content = torch::randn({1, kTokens, kContent});
  Tensor bits = torch::zeros({1, kTokens, kBits});
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t b = 0; b < kBits; ++b) bits[0][t][b] = (t >> b) & 1 ? 1.0 : -1.0;
  const Tensor x = torch::cat({content, bits}, -1);
  const Tensor y = module->forward(x).narrow(2, 0, kContent);
  EXPECT_TRUE(torch::equal(y, module->pyramid(x)[0].narrow(2, 0, kContent)));  // off-diagonal weights are exactly 0
  EXPECT_TRUE(torch::allclose(y, causal_filter(content, kernel, 1), 1e-5, 1e-6));
}

TEST(HktAttention, DecodingEqualsTheParallelForward) {
  for (const auto& options : variants()) {
    HktAttention module = make(options);
    const Tensor x = torch::randn({3, 40, 16}, torch::kFloat64);
    const Tensor want = module->forward(x);
    // Prompts of different lengths, none among them; then one token at a time.
    const Tensor lengths = torch::tensor({0, 5, 12});
    auto [prompt_out, cache] = module->prefill(x.narrow(1, 0, 12), lengths);
    EXPECT_TRUE(torch::allclose(prompt_out[2], want[2].narrow(0, 0, 12), 1e-12, 1e-13)) << *module;
    for (int64_t step = 0; step < 28; ++step) {
      if (step == 9) {  // saved and restored in the middle
        const std::string path = testing::TempDir() + "/cache.safetensors";
        save_safetensors(path, cache.state());
        cache = HktCache::from_state(load_safetensors(path).tensors);
      }
      const Tensor tokens = torch::stack({x[0][step], x[1][5 + step], x[2][12 + step]});
      const Tensor expected = torch::stack({want[0][step], want[1][5 + step], want[2][12 + step]});
      EXPECT_TRUE(torch::allclose(module->step(tokens, cache), expected, 1e-10, 1e-12)) << step << " of " << *module;
    }
  }
}

TEST(HktAttention, FlatAttentionIsOneLevel) {
  FlatAttention flat(HktAttentionOptions(8, 2));
  EXPECT_EQ(flat->options.levels(), 1);
  const Tensor x = torch::randn({1, 5, 8});
  EXPECT_EQ(flat->forward(x).sizes(), x.sizes());
}

TEST(HktAttention, CloneIsIndependent) {
  HktAttention module = make(HktAttentionOptions(16, 4).psd(true).per_level_projections(true));
  auto copy = std::dynamic_pointer_cast<HktAttentionImpl>(module->clone());
  const Tensor x = torch::randn({1, 6, 16}, torch::kFloat64);
  const Tensor before = module->forward(x).detach();
  EXPECT_TRUE(torch::equal(copy->forward(x), before));
  torch::NoGradGuard no_grad;
  for (Tensor& p : copy->parameters()) p.zero_();
  EXPECT_TRUE(torch::equal(module->forward(x), before));
}

TEST(HktAttention, MistakesAreNamed) {
  auto refuse = [](const HktAttentionOptions& options, const std::string& words) {
    expect_error([&] { HktAttention module(options); }, words);
  };
  refuse(HktAttentionOptions(10, 4), "multiple of heads, got model_size = 10 and heads = 4");
  refuse(HktAttentionOptions(16, 4).key_heads(3), "key_heads: expected a divisor of heads = 4, got 3");
  refuse(HktAttentionOptions(1024, 2), "head size of at most 256");
  refuse(HktAttentionOptions(16, 4).levels(9), "levels: expected 1 to 8, got 9");
  refuse(HktAttentionOptions(16, 4).taps(0), "taps: expected 1 or more");
  refuse(HktAttentionOptions(16, 4).psd(true).key_heads(2), "psd: expected key_heads = heads");
  refuse(HktAttentionOptions(16, 4).attention_dropout(1.0), "attention_dropout: expected a probability");
  refuse(HktAttentionOptions(16, 4).rotary(3), "rotary: expected an even number of channels, at most the head size 4");
  refuse(HktAttentionOptions(16, 4).rotary(6), "rotary: expected an even number of channels, at most the head size 4");
  refuse(HktAttentionOptions(16, 4).rotary(4).rotary_base(1), "rotary_base: expected a number above 1");
  refuse(HktAttentionOptions(16, 4).rotary(4).psd(true), "psd: expected rotary = 0");
  HktAttention module(HktAttentionOptions(16, 4));
  expect_error([&] { module->forward(torch::zeros({2, 16})); }, "x: expected shape (batch, tokens, 16)");
  expect_error([&] { module->forward(torch::zeros({2, 3, 16}), torch::tensor({1})); }, "lengths: expected shape (2)");
  expect_error([&] { module->prefill(torch::zeros({2, 3, 16})); }, "expected a causal module");
  HktAttention causal(HktAttentionOptions(16, 4).causal(true));
  auto cache = causal->prefill(torch::zeros({2, 3, 16})).second;
  expect_error([&] { causal->step(torch::zeros({3, 16}), cache); }, "x: expected shape (2, 16)");
  expect_error([&] { HktCache::from_state({}); }, "expected a tensor named \"lengths\"");
}

}  // namespace
}  // namespace strata
