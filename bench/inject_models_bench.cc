// What an injection gains in whole models: a forward pass of seeded models of the shapes of roberta-base and gpt2, with
// softmax and with HSA in some layers (docs/INJECT.md). Time does not depend on the weights, so nothing is downloaded.
#include <cstdio>

#include "bench/measure.h"
#include "bench/report.h"
#include "inject/inject.h"
#include "inject/selection.h"
#include "inject/timing.h"
#include "torch/hsa_op.h"
#ifdef STRATA_CUDA
#include "bench/cuda_measure.h"
#endif

namespace strata::bench {
namespace {

using torch::Tensor;

constexpr int64_t kBranching = 16;

struct Shape {
  const char* name;
  int64_t tokens;  // as many as the model has positions
  const char* config;
};
constexpr Shape kShapes[] = {
    {"roberta", 512,
     R"({"model_type": "roberta", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
         "intermediate_size": 3072, "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1,
         "layer_norm_eps": 1e-5})"},
    {"gpt2", 1024,
     R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024})"}};

// Layers that attend by HSA: every second one from the last back to the middle, or to the beginning.
struct Way {
  const char* name;
  std::vector<int64_t> layers;
};
std::vector<Way> ways(int64_t layers) {
  std::vector<int64_t> alternate = late_order(layers);
  alternate.resize((layers + 1) / 2);
  return {{"softmax", {}}, {"late", parse_layers("late", layers)}, {"alternate", alternate}};
}

// Encoders: balanced trees, and the first and last token attend to all. Causal models: the streaming form.
Injection injection_of(const PretrainedConfig& config, const Way& way, int64_t batch, int64_t tokens) {
  Injection injection;
  if (!config.is_causal()) injection.exact.assign(batch, {0, tokens - 1});
  Tree tree;
  const Status status = balanced_tree(tokens, kBranching, Domain::kSequence, &tree);
  TORCH_CHECK(status.ok(), status.message());
  const std::vector<Tensor> trees(batch, encode_tree(tree));
  for (const int64_t layer : way.layers) {
    if (config.is_causal()) {
      injection.streams[layer] = kBranching;
    } else {
      injection.trees[layer] = {trees};
    }
  }
  return injection;
}

// Seconds of each contender, by name.
using Timer = std::function<std::map<std::string, double>(const Contenders&)>;

void add_model(const Shape& shape, int64_t batch, const torch::Device& device, const Timer& time,
               std::vector<Figure>& figures) {
  torch::NoGradGuard no_grad;
  Pretrained model = Pretrained::seeded(PretrainedConfig::from_json(shape.config, shape.name), 1);
  model.to(device);
  if (device.is_cuda()) model.to(torch::kBFloat16);
  const PretrainedConfig& config = model.config();
  const Tensor ids = torch::randint(1, 1000, {batch, shape.tokens}, torch::kLong).to(device);
  const Tensor lengths = torch::full({batch}, shape.tokens, torch::kLong).to(device);
  const AttentionFunction softmax = model.attention;
  const std::string prefix =
      std::string("inject_") + (device.is_cuda() ? "cuda_" : "cpu_") + shape.name + "_t" + std::to_string(shape.tokens);
  std::map<std::string, ForwardFlops> flops;
  Contenders contenders;
  for (const Way& way : ways(config.layers)) {
    Injection injection = injection_of(config, way, batch, shape.tokens);
    const AttentionFunction attention = inject_hsa(softmax, injection, config.is_causal());
    injection.costs = std::make_shared<std::vector<AttentionCost>>(config.layers);  // counted once, not while timed
    model.attention = inject_hsa(softmax, injection, config.is_causal());
    model.hidden_states(ids, lengths);
    flops[way.name] = forward_flops(config, batch * shape.tokens, *injection.costs);
    contenders.emplace_back(way.name, [&model, &ids, &lengths, attention] {
      model.attention = attention;
      model.hidden_states(ids, lengths);
    });
  }
  std::map<std::string, double> seconds = time(contenders);
  const ForwardFlops flat = flops["softmax"];
  figures.push_back({prefix + "_softmax_attention_share_of_flops", flat.attention / flat.all(), ""});
  for (const auto& [name, work] : contenders) {
    const ForwardFlops& own = flops[name];
    std::printf("%-14s %6ld %6ld  %-10s %10.1f %8.3f %8.3f %8.3f\n", shape.name, static_cast<long>(shape.tokens),
                static_cast<long>(batch), name.c_str(), 1e3 * seconds[name], seconds[name] / seconds["softmax"],
                own.all() / flat.all(), own.attention / flat.attention);
    figures.push_back({prefix + "_" + name + "_ms", 1e3 * seconds[name], ""});
    if (name == "softmax") continue;
    figures.push_back({prefix + "_" + name + "_time_over_softmax", seconds[name] / seconds["softmax"], ""});
    figures.push_back({prefix + "_" + name + "_flops_over_softmax", own.all() / flat.all(), ""});
    figures.push_back({prefix + "_" + name + "_attention_over_softmax", own.attention / flat.attention, ""});
  }
}

std::vector<Figure> all_models(int64_t batch, const torch::Device& device, const Timer& time) {
  std::printf("Forward passes of seeded models, the last hidden states: %s, branching %ld\n",
              device.is_cuda() ? "bfloat16 on the GPU" : "float32 on the CPU", static_cast<long>(kBranching));
  std::printf("%-14s %6s %6s  %-10s %10s %8s %8s %8s\n", "shape", "tokens", "batch", "HSA in", "ms", "time", "FLOPs",
              "attention");
  std::vector<Figure> figures;
  for (const Shape& shape : kShapes) add_model(shape, batch, device, time, figures);
  std::printf("time, FLOPs and attention (its FLOPs alone) are over those with softmax in all layers\n\n");
  return figures;
}

}  // namespace

std::vector<Figure> inject_model_figures(const Arguments& arguments) {
  return all_models(4, torch::kCPU, [&](const Contenders& contenders) {
    return race(contenders, std::min(arguments.rounds, 5));  // a pass takes seconds
  });
}

#ifdef STRATA_CUDA
std::vector<Figure> inject_cuda_figures(const Arguments& arguments) {
  return all_models(32, torch::kCUDA, [&](const Contenders& contenders) {
    std::map<std::string, double> seconds;
    for (const auto& [name, work] : contenders) seconds[name] = 1e-3 * milliseconds(work, arguments.rounds);
    return seconds;
  });
}
#endif

}  // namespace strata::bench
