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
struct Step {
  Step(const char* attention, int64_t tokens, int64_t batch, const AttentionMaker& maker = make_attention,
       torch::Device device = torch::kCPU) {
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
    optimizer = std::make_shared<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(1e-4));
    input.tokens = torch::randint(1, 257, {batch, tokens}, torch::kLong);
    input.tokens = input.tokens.to(device);
    input.lengths = torch::full({batch}, tokens, torch::kLong).to(device);
    targets = torch::randint(0, 10, {batch}, torch::kLong).to(device);
    bf16 = device.is_cuda();
  }

  void operator()() {
    optimizer->zero_grad();
    {
      const AutocastGuard autocast(bf16, targets.device().type());
      loss = torch::nn::functional::cross_entropy(model->forward(input).to(torch::kFloat), targets);
    }
    loss.backward();
    optimizer->step();
  }

  SequenceModel model{nullptr};
  std::shared_ptr<torch::optim::AdamW> optimizer;
  ModelInput input;
  torch::Tensor targets, loss;
  bool bf16 = false;
};

}  // namespace

std::vector<Figure> train_figures(const Arguments& arguments) {
  constexpr int64_t kBatch = 8;
  Step flat("flat", 512, kBatch), hkt("hkt", 512, kBatch);
  Step fused("hkt", 1024, kBatch), composed("hkt", 1024, kBatch, make_composed);
  fused();
  composed();
  TORCH_CHECK(torch::allclose(fused.loss, composed.loss, 1e-4, 1e-5),
              "the composed model computes something else: ", fused.loss.item<double>(), " and ",
              composed.loss.item<double>());
  auto work = [](Step& step) { return [&step] { step(); }; };
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
  Step fused("hkt", kTokens, kBatch, make_attention, torch::kCUDA),
      composed("hkt", kTokens, kBatch, make_composed, torch::kCUDA);
  auto work = [](Step& step) {
    return [&step] {
      step();
      torch::cuda::synchronize();
    };
  };
  auto times = race({{"fused", work(fused)}, {"composed", work(composed)}}, arguments.rounds);
  TORCH_CHECK(torch::allclose(fused.loss, composed.loss, 3e-2, 3e-2),
              "the composed model computes something else: ", fused.loss.item<double>(), " and ",
              composed.loss.item<double>());
  const double tokens = kBatch * kTokens;
  std::printf(
      "Training steps on the GPU: 2 layers, 128 channels, 4 heads, T=1024, batch %ld, bfloat16, AdamW\n"
      "milliseconds: HKT L=3 %.2f (%.0f tokens/s), composed from torch's operators %.2f (%.0f tokens/s)\n\n",
      static_cast<long>(kBatch), 1e3 * times["fused"], tokens / times["fused"], 1e3 * times["composed"],
      tokens / times["composed"]);
  return {{"train_cuda_tokens_per_second_over_eager", times["composed"] / times["fused"], ">= 2"}};
}
#endif

}  // namespace strata::bench
