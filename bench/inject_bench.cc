// The figures of HSA in the place of a trained transformer's softmax (docs/PERFORMANCE.md says what each means).
#include <cstdio>

#include "bench/measure.h"
#include "bench/report.h"
#include "inject/selection.h"
#include "inject/timing.h"
#include "torch/hsa_op.h"
#include "util/file.h"

namespace strata::bench {
namespace {

constexpr int64_t kHeads = 12, kHeadSize = 32, kBranching = 16;  // MiniLM's heads

// q, k and v as a model has them: views of (tokens, heads, channels).
struct Inputs {
  explicit Inputs(int64_t tokens) : lengths(torch::tensor({tokens})) {
    for (torch::Tensor* t : {&q, &k, &v}) *t = torch::randn({1, tokens, kHeads, kHeadSize}).transpose(1, 2);
    Tree tree;
    const Status status = balanced_tree(tokens, kBranching, Domain::kSequence, &tree);
    TORCH_CHECK(status.ok(), status.message());
    Injection injection;
    injection.trees[0] = {{encode_tree(tree)}};
    injection.exact = {{0, tokens - 1}};  // the two special tokens attend to all, and are counted
    hsa = inject_hsa(flat, injection, false);
  }
  std::function<void()> run(const AttentionFunction& attention) const {
    return [this, attention] {
      torch::NoGradGuard no_grad;
      attention(0, q, k, v, lengths);
    };
  }

  torch::Tensor q, k, v, lengths;
  AttentionFunction flat = softmax_attention(false), hsa;
};

// Of a real model: how fast it is loaded and its texts are read.
std::vector<Figure> model_figures(const Arguments& arguments) {
  std::vector<Figure> figures;
  if (arguments.model.empty()) return figures;
  const int rounds = std::max(3, arguments.rounds);
  // Files are mapped, so that loading alone reads nothing; a first short text does.
  auto load = [&] {
    auto host = Host::open(arguments.model);
    host->run({host->read("A short text.")}, softmax_attention(host->is_causal()));
  };
  figures.push_back({"hub_load_and_first_text_seconds", race({{"load", load}}, rounds).at("load"), "<= 0.5"});
  if (!arguments.text.empty()) {
    const Tokenizer tokenizer = Tokenizer::load(arguments.model);
    const std::string text = read_file(arguments.text);
    const double seconds = race({{"text", [&] { tokenizer.encode(text); }}}, rounds).at("text");
    figures.push_back({"hub_tokenizer_mb_per_second", static_cast<double>(text.size()) / 1e6 / seconds, ">= 5"});
  }
  auto host = Host::open(arguments.model);
  InjectionSelection selection;
  for (const int64_t layer : parse_layers("late", host->layers()))
    selection.layers.push_back({layer, {{"balanced", kBranching}}});
  const int64_t tokens = std::min<int64_t>(512, host->longest());
  const Json row = time_by_length(*host, selection, {"balanced", kBranching}, {tokens}, 2.0)[0];
  std::printf(
      "milliseconds at %ld tokens, flat and HSA: the operator %.2f %.2f, a whole layer %.2f %.2f, the model with "
      "late layers %.1f %.1f\n\n",
      static_cast<long>(tokens), row["operator"]["flat_ms"].get<double>(), row["operator"]["hsa_ms"].get<double>(),
      row["layer"]["flat_ms"].get<double>(), row["layer"]["hsa_ms"].get<double>(),
      row["model"]["flat_ms"].get<double>(), row["model"]["hsa_ms"].get<double>());
  figures.push_back({"inject_cpu_layer_flat_over_hsa_t512", row["layer"]["ratio"], ""});
  figures.push_back({"inject_cpu_model_flat_over_hsa_t512", row["model"]["ratio"], ""});
  return figures;
}

}  // namespace

std::vector<Figure> inject_figures(const Arguments& arguments) {
  std::printf("HSA injected, on the CPU: float32, %ld heads of %ld, branching %ld, two exact tokens, %d threads\n",
              static_cast<long>(kHeads), static_cast<long>(kHeadSize), static_cast<long>(kBranching),
              arguments.threads);
  torch::manual_seed(1);
  std::vector<Figure> figures;
  for (const auto& [tokens, bar] :
       std::vector<std::pair<int64_t, const char*>>{{512, ">= 2"}, {2048, ""}, {8192, ">= 20"}}) {
    const Inputs inputs(tokens);
    auto times =
        race({{"flat", inputs.run(inputs.flat)}, {"hsa", inputs.run(inputs.hsa)}}, std::max(3, arguments.rounds));
    figures.push_back({"inject_cpu_flat_over_hsa_t" + std::to_string(tokens), times["flat"] / times["hsa"], bar});
  }
  for (Figure& figure : model_figures(arguments)) figures.push_back(std::move(figure));
  for (Figure& figure : inject_model_figures(arguments)) figures.push_back(std::move(figure));
  return figures;
}

}  // namespace strata::bench
