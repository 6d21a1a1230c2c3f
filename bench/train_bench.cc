// Training steps of whole models, side by side: HKT against flat, and our operators against attention composed from
// torch's.
#include <torch/torch.h>

#include <cstdio>

#include "bench/measure.h"
#include "bench/report.h"
#include "model/hkt_attention.h"
#include "model/sequence_model.h"
#include "torch/compat.h"
#include "torch/composed.h"
#include "train/train_step.h"

namespace strata::bench {
namespace {

// The same HKT module, its attention composed from matmul, softmax and the rest.
AttentionModule make_composed(const ModelConfig& config, const ModelShape& shape) {
  const AttentionModule fused = make_attention(config, shape);
  auto module = std::dynamic_pointer_cast<HktAttentionImpl>(fused.module);
  return {fused.module, [module, heads = config.heads](const torch::Tensor& x, const ModelInput&) {
            std::vector<torch::Tensor> q, k;
            const std::vector<torch::Tensor> states = module->pyramid(x);
            for (size_t l = 0; l < states.size(); ++l) {
              auto [query, key] = module->project(states[l], static_cast<int64_t>(l));
              q.push_back(query);
              k.push_back(key);
            }
            const auto parameters = module->named_parameters();
            const torch::Tensor v = torch::linear(states[0], parameters["value.weight"])
                                        .view({x.size(0), x.size(1), heads, -1})
                                        .transpose(1, 2);
            const torch::Tensor mixed = composed_hkt(q, k, v, module->level_weights().to(v.scalar_type()));
            return torch::linear(mixed.transpose(1, 2).reshape(x.sizes()), parameters["out.weight"]);
          }};
}

// A classifier of 2 layers and 128 channels, and one batch of its work.
struct Classifier {
  Classifier(const char* attention, int64_t tokens, int64_t rows, const AttentionMaker& maker, torch::Device device) {
    torch::manual_seed(1);
    ModelConfig config;
    config.attention = attention;
    config.model_size = 128;
    config.dropout = 0;
    ModelShape shape;
    shape.vocabulary = 257;
    shape.outputs = 10;
    shape.length = tokens;
    model = SequenceModel(config, shape, maker);
    model->to(device);
    auto draw = [](int64_t from, int64_t to, int64_t count) {
      const torch::Tensor numbers = torch::randint(from, to, {count}, torch::kLong);
      return std::vector<int64_t>(numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + count);
    };
    batch.rows = rows;
    batch.width = tokens;
    batch.tokens = draw(1, 257, rows * tokens);
    batch.lengths.assign(rows, tokens);
    batch.targets = draw(0, 10, rows);
  }

  SequenceModel model{nullptr};
  Batch batch;
  torch::Tensor loss;
};

constexpr double kLearningRate = 1e-4;

// Its steps as `strata train` runs them.
struct Step : Classifier {
  Step(const char* attention, int64_t tokens, int64_t rows, torch::Device device = torch::kCPU, bool graphs = true)
      : Classifier(attention, tokens, rows, make_attention, device),
        optimizer(*model, 0.01),
        step(model, optimizer, {.clip = 1.0, .bf16 = device.is_cuda(), .graphs = graphs}) {}
  void operator()() { loss = step({batch}, kLearningRate, 1)[0].mean; }

  AdamW optimizer;
  TrainStep step;
};

// Steps of the composed model, with torch's optimizer.
struct ComposedStep : Classifier {
  ComposedStep(int64_t tokens, int64_t rows, torch::Device device = torch::kCPU)
      : Classifier("hkt", tokens, rows, make_composed, device),
        optimizer(model->parameters(), torch::optim::AdamWOptions(kLearningRate)),
        input(to_input(batch, device)),
        targets(to_device(batch.targets, device)) {}
  void operator()() {
    optimizer.zero_grad();
    {
      const AutocastGuard autocast(targets.is_cuda(), targets.device().type());
      loss = torch::nn::functional::cross_entropy(model->forward(input).to(torch::kFloat), targets);
    }
    loss.backward();
    optimizer.step();
  }

  torch::optim::AdamW optimizer;
  ModelInput input;
  torch::Tensor targets;
};

}  // namespace

std::vector<Figure> train_figures(const Arguments& arguments) {
  constexpr int64_t kBatch = 8;
  Step flat("flat", 512, kBatch), hkt("hkt", 512, kBatch);
  Step fused("hkt", 1024, kBatch);
  ComposedStep composed(1024, kBatch);
  fused();
  composed();
  TORCH_CHECK(torch::allclose(fused.loss, composed.loss, 1e-4, 1e-5),
              "the composed model computes something else: ", fused.loss.item<double>(), " and ",
              composed.loss.item<double>());
  auto work = [](auto& step) { return [&step] { step(); }; };
  auto short_rows = race({{"flat", work(flat)}, {"hkt", work(hkt)}}, arguments.rounds);
  auto long_rows = race({{"fused", work(fused)}, {"composed", work(composed)}}, std::min(arguments.rounds, 5));
  std::printf(
      "Training steps on the CPU: 2 layers, 128 channels, 4 heads, batch %ld, AdamW, %d threads\n"
      "milliseconds: T=512 flat %.1f, HKT L=3 %.1f; T=1024 HKT L=3 %.1f, composed %.1f\n\n",
      static_cast<long>(kBatch), arguments.threads, 1e3 * short_rows["flat"], 1e3 * short_rows["hkt"],
      1e3 * long_rows["fused"], 1e3 * long_rows["composed"]);
  return {{"train_cpu_step_hkt_over_flat", short_rows["hkt"] / short_rows["flat"], "<= 1.35"},
          {"train_cpu_step_composed_over_fused", long_rows["composed"] / long_rows["fused"], ">= 2"}};
}

#ifdef STRATA_CUDA
std::vector<Figure> train_cuda_figures(const Arguments& arguments) {
  constexpr int64_t kBatch = 64, kTokens = 1024;
  Step flat("flat", kTokens, kBatch, torch::kCUDA), hkt("hkt", kTokens, kBatch, torch::kCUDA);
  Step unrecorded("hkt", kTokens, kBatch, torch::kCUDA, /*graphs=*/false);
  ComposedStep composed(kTokens, kBatch, torch::kCUDA);
  auto work = [](auto& step) {
    return [&step] {
      step();
      torch::cuda::synchronize();
    };
  };
  work(hkt)();
  work(composed)();
  TORCH_CHECK(torch::allclose(hkt.loss, composed.loss, 3e-2, 3e-2),
              "the composed model computes something else: ", hkt.loss.item<double>(), " and ",
              composed.loss.item<double>());
  for (int warm = 0; warm < 4; ++warm) {  // until the steps are recorded
    work(flat)();
    work(hkt)();
  }
  auto times = race({{"flat", work(flat)}, {"hkt", work(hkt)}}, 3 * arguments.rounds);
  auto others =
      race({{"hkt", work(hkt)}, {"unrecorded", work(unrecorded)}, {"composed", work(composed)}}, arguments.rounds);
  const double tokens = kBatch * kTokens;
  std::printf(
      "Training steps on the GPU: 2 layers, 128 channels, 4 heads, T=1024, batch %ld, bfloat16, clipping and AdamW\n"
      "milliseconds: flat %.3f, HKT L=3 %.3f (%.0f tokens/s), not recorded %.3f, composed from torch's operators %.3f "
      "(%.0f tokens/s)\n\n",
      static_cast<long>(kBatch), 1e3 * times["flat"], 1e3 * times["hkt"], tokens / times["hkt"],
      1e3 * others["unrecorded"], 1e3 * others["composed"], tokens / others["composed"]);
  return {{"train_cuda_step_hkt_over_flat", times["hkt"] / times["flat"], "<= 1.35"},
          {"train_cuda_tokens_per_second_over_eager", others["composed"] / others["hkt"], ">= 7"}};
}
#endif

}  // namespace strata::bench
