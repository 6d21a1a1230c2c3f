// Decoding caches: steps equal the parallel forward in any order of steps, crops and reorderings, for sequences of
// different lengths, with and without windows.
#include <gtest/gtest.h>

#include <random>

#include "model/safetensors.h"
#include "model/strata_attention.h"
#include "torch/expect_error.h"

namespace strata {
namespace {

using torch::Tensor;

constexpr int64_t kModel = 16;

Tensor random_rows(int64_t count) { return torch::randn({count, kModel}, torch::kFloat64); }

template <class Module>
Module in_float64(Module module) {
  module->to(torch::kFloat64);
  torch::NoGradGuard no_grad;
  for (Tensor& p : module->parameters()) p.add_(0.3 * torch::randn_like(p));
  return module;
}

// The forward of one sequence x (T, model); a window as a bias, by its definition.
Tensor parallel(HktAttention& module, const Tensor& x, int64_t window) {
  c10::optional<Tensor> bias;
  if (window >= 0) {
    const Tensor at = torch::arange(x.size(0));
    const Tensor hidden = at < (at - window).unsqueeze(1);
    bias = torch::zeros({x.size(0), x.size(0)}, torch::kFloat64).masked_fill(hidden, -INFINITY);
  }
  return module->forward(x.unsqueeze(0), c10::nullopt, bias)[0];
}
Tensor parallel(HsaAttention& module, const Tensor& x, int64_t) { return module->forward(x.unsqueeze(0))[0]; }
Tensor parallel(StrataAttention& module, const Tensor& x, int64_t) { return module->forward(x.unsqueeze(0))[0]; }

const std::vector<int64_t>& counts_of(const CacheLengths& cache) { return cache.counts(); }
const std::vector<int64_t>& counts_of(const StrataCache& cache) { return cache.nodes.counts(); }

// A random walk of steps, crops, reorderings and saves; `texts` are the rows that the cache must hold.
template <class Module, class Cache>
void walk(Module& module, Cache cache, std::vector<Tensor> texts, int64_t history, int64_t window = -1) {
  std::mt19937 random(static_cast<unsigned>(7 + history));
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<int64_t> floors;
  for (const Tensor& text : texts) floors.push_back(std::max<int64_t>(0, text.size(0) - history));
  for (int turn = 0; turn < 40; ++turn) {
    const int64_t move = below(7);
    if (move == 0) {
      std::vector<int64_t> lengths;
      for (size_t n = 0; n < texts.size(); ++n) {
        lengths.push_back(floors[n] + below(texts[n].size(0) - floors[n] + 1));
        texts[n] = texts[n].narrow(0, 0, lengths[n]);
      }
      cache.crop(lengths);
    } else if (move == 1) {
      std::vector<int64_t> indices, new_floors;
      std::vector<Tensor> chosen;
      for (int64_t n = 2 + below(3); n > 0; --n) indices.push_back(below(static_cast<int64_t>(texts.size())));
      for (const int64_t n : indices) chosen.push_back(texts[n]), new_floors.push_back(floors[n]);
      cache.reorder(indices);
      texts = chosen;
      floors = new_floors;
    } else if (move == 2) {
      const std::string path = testing::TempDir() + "/walked_cache.safetensors";
      save_safetensors(path, cache.state());
      cache = Cache::from_state(load_safetensors(path).tensors);
    } else {
      const Tensor x = random_rows(static_cast<int64_t>(texts.size()));
      const Tensor got = module->step(x, cache);
      for (size_t n = 0; n < texts.size(); ++n) {
        texts[n] = torch::cat({texts[n], x.narrow(0, static_cast<int64_t>(n), 1)});
        const Tensor want = parallel(module, texts[n], window)[-1];
        ASSERT_TRUE(torch::allclose(got[static_cast<int64_t>(n)], want, 1e-9, 1e-11))
            << *module << ", history " << history << ", window " << window << ", length " << texts[n].size(0);
        floors[n] = std::max(floors[n], texts[n].size(0) - history);
      }
    }
    for (size_t n = 0; n < texts.size(); ++n) ASSERT_EQ(counts_of(cache)[n], texts[n].size(0)) << turn;
  }
}

const std::vector<int64_t> kStarts = {0, 3, 17};

// Prompts of these lengths behind each other's padding, which holds NaN.
Tensor prompts(std::vector<Tensor>& texts) {
  const Tensor x = torch::full({3, 17, kModel}, NAN, torch::kFloat64);
  for (int64_t n = 0; n < 3; ++n) {
    texts.push_back(random_rows(kStarts[n]));
    x[n].narrow(0, 0, kStarts[n]).copy_(texts.back());
  }
  return x;
}

std::vector<HktAttentionOptions> pyramids() {
  const HktAttentionOptions base(kModel, 4);
  return {HktAttentionOptions(base).levels(1),
          HktAttentionOptions(base).levels(1).rotary(4).key_heads(2),
          HktAttentionOptions(base).levels(1).input_filter(true).taps(2),
          HktAttentionOptions(base).levels(3),
          HktAttentionOptions(base).levels(4).taps(1).rotary(2),
          HktAttentionOptions(base).levels(3).rotary(4).key_heads(2).input_filter(true),
          HktAttentionOptions(base).levels(2).dense_filters(true).per_level_projections(true).key_heads(1)};
}

TEST(HktCache, StepsCropsAndReorderings) {
  torch::manual_seed(3);
  for (HktAttentionOptions options : pyramids()) {
    HktAttention module = in_float64(HktAttention(options.causal(true)));
    for (const int64_t history : {0, 1, 5, 40}) {
      for (const int64_t window : {-1, 0, 3, 6}) {
        std::vector<Tensor> texts;
        const Tensor x = prompts(texts);
        auto [out, cache] =
            module->prefill(x, torch::tensor(kStarts), HktCacheOptions().history(history).window(window));
        EXPECT_TRUE(torch::allclose(out[2], parallel(module, texts[2], window), 1e-9, 1e-11));
        walk(module, cache, texts, history, window);
      }
    }
  }
}

TEST(HktCache, MemoryIsAllocatedAhead) {
  HktAttention module = in_float64(HktAttention(HktAttentionOptions(kModel, 4).levels(3).causal(true)));
  const Tensor x = torch::randn({2, 5, kModel}, torch::kFloat64);
  HktCache cache = module->prefill(x, c10::nullopt, HktCacheOptions().capacity(40)).second;
  EXPECT_EQ(cache.values.size(2), 40);
  EXPECT_EQ(cache.levels[1].keys.size(2), 20);
  const void* place = cache.levels[1].keys.data_ptr();
  for (int t = 0; t < 35; ++t) module->step(random_rows(2), cache);
  EXPECT_EQ(cache.levels[1].keys.data_ptr(), place);  // written in place
  module->step(random_rows(2), cache);
  EXPECT_EQ(cache.values.size(2), 80);
  // With a window the rows are those that hold a visible token.
  HktCache window = module->prefill(x, c10::nullopt, HktCacheOptions().window(7)).second;
  for (int t = 0; t < 30; ++t) module->step(random_rows(2), window);
  EXPECT_EQ(window.values.size(2), 8);
  EXPECT_EQ(window.levels[1].keys.size(2), 5);
  EXPECT_EQ(window.levels[2].keys.size(2), 3);
}

TEST(HsaStreamCache, StepsCropsAndReorderings) {
  torch::manual_seed(3);
  const HsaAttentionOptions base = HsaAttentionOptions(kModel, 4).streaming(true);
  const std::vector<HsaAttentionOptions> variants = {
      HsaAttentionOptions(base).branching(3), HsaAttentionOptions(base).branching(2).rotary(4).l2_energy(true),
      HsaAttentionOptions(base).branching(4).positions("bias").tables(2).places(4).normalize(true)};
  for (const HsaAttentionOptions& options : variants) {
    HsaAttention module = in_float64(HsaAttention(options));
    for (const int64_t history : {0, 1, 5, 40}) {
      std::vector<Tensor> texts;
      const Tensor x = prompts(texts);
      auto [out, cache] = module->prefill(x, torch::tensor(kStarts), /*capacity=*/1, history);
      EXPECT_TRUE(torch::allclose(out[2], parallel(module, texts[2], -1), 1e-9, 1e-11));
      walk(module, cache, texts, history);
    }
  }
}

TEST(StrataCache, StepsCropsAndReorderings) {
  torch::manual_seed(3);
  const StrataAttentionOptions base = StrataAttentionOptions(kModel, 4).form(StrataForm::kStreaming);
  const std::vector<HktAttentionOptions> all = pyramids();
  const std::vector<StrataAttentionOptions> variants = {
      StrataAttentionOptions(base).pyramid(all[3]).branching(2).near(2),
      StrataAttentionOptions(base).pyramid(all[5]).branching(3).near(2).positions("bias").tables(2),
      StrataAttentionOptions(base).pyramid(all[6]).branching(2).near(3),
      StrataAttentionOptions(base).pyramid(all[1]).branching(4).near(1)};
  for (const StrataAttentionOptions& options : variants) {
    StrataAttention module = in_float64(StrataAttention(options));
    for (const int64_t history : {0, 1, 5, 40}) {
      std::vector<Tensor> texts;
      const Tensor x = prompts(texts);
      auto [out, cache] = module->prefill(x, torch::tensor(kStarts), /*capacity=*/1, history);
      EXPECT_TRUE(torch::allclose(out[2], parallel(module, texts[2], -1), 1e-9, 1e-11));
      walk(module, cache, texts, history);
    }
  }
}

TEST(DecodingCache, RefusesWhatDoesNotFit) {
  HktAttention hkt = in_float64(HktAttention(HktAttentionOptions(kModel, 4).levels(3).causal(true)));
  const Tensor x = torch::randn({2, 9, kModel}, torch::kFloat64);
  HktCache cache = hkt->prefill(x, c10::nullopt, HktCacheOptions().history(3)).second;
  expect_error([&] { cache.crop(5); }, "max_length: sequence 0 has 9 tokens and can be cropped to 6 or more");
  cache.crop(-2);
  EXPECT_EQ(cache.counts(), (std::vector<int64_t>{7, 7}));
  expect_error([&] { cache.crop(std::vector<int64_t>{7, 5}); }, "sequence 1 has 7 tokens");
  expect_error([&] { cache.crop(std::vector<int64_t>{7}); }, "max_length: expected 2 numbers");
  expect_error([&] { cache.reorder({0, 2}); }, "indices: expected numbers from 0 to 1, got 2");
  expect_error([&] { hkt->prefill(x, c10::nullopt, HktCacheOptions().history(-1)); }, "history: expected 0 or more");
  expect_error([&] { hkt->prefill(x, c10::nullopt, HktCacheOptions().window(-2)); }, "window: expected 0 or more");
  expect_error([&] { hkt->prefill(x, c10::nullopt, HktCacheOptions().capacity(-1)); }, "capacity: expected 0 or more");
  expect_error([&] { hkt->prefill(x, torch::tensor({9, 10})); }, "lengths: expected 0 to 9, got 10");
  HsaAttention hsa = in_float64(HsaAttention(HsaAttentionOptions(kModel, 4).streaming(true)));
  HsaStreamCache stream = hsa->prefill(x).second;
  expect_error([&] { stream.crop(-1); }, "can be cropped to 9 or more, because the cache was made with history = 0");
  expect_error([&] { hsa->start_stream(2, 0); }, "capacity: expected 1 or more heights, got 0");
  HsaAttention tree{HsaAttentionOptions(kModel, 4)};
  expect_error([&] { tree->prefill(x); }, "prefill: expected the streaming form");
}

}  // namespace
}  // namespace strata
