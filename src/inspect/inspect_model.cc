#include "inspect/inspect_model.h"

#include <torch/torch.h>

#include "data/loader.h"
#include "data/task.h"
#include "inspect/inspect_hkt.h"
#include "inspect/inspect_stream.h"
#include "inspect/inspect_tree.h"
#include "inspect/pictures.h"
#include "train/evaluate.h"
#include "train/record.h"
#include "util/common_options.h"
#include "util/digest.h"
#include "util/error.h"
#include "util/progress.h"

namespace strata {
namespace {

using torch::Tensor;

// The inputs of the layers, row by row, without padding.
struct LayerInputs {
  std::vector<std::vector<Tensor>> read;  // [layer][row], (tokens, model); fewer rows where one was not reached
  std::vector<std::shared_ptr<const Tree>> trees;  // [row], of HSA on trees
  std::vector<Batch> batches;
};

LayerInputs read_rows(LoadedModel& loaded, const TaskData& data, const Dataset& split, int64_t rows, bool finite) {
  LoaderOptions options;
  options.batch = 1;
  options.goal = data.goal;
  options.trees = tree_maker(loaded.card);
  LayerInputs inputs;
  inputs.read.resize(loaded.card.config.layers);
  for (int64_t row = 0; row < rows; ++row) {
    Batch batch = make_batch(split, options, row);
    std::vector<Tensor> read;
    try {
      loaded.model->attention_inputs(to_input(batch, torch::kCPU), read);
    } catch (const c10::Error&) {
      if (finite) throw;  // operators refuse numbers that are not finite; the layers above stay empty
    }
    for (size_t layer = 0; layer < read.size(); ++layer) inputs.read[layer].push_back(read[layer][0]);
    if (!batch.trees.empty()) inputs.trees.push_back(batch.trees[0]);
    inputs.batches.push_back(std::move(batch));
  }
  return inputs;
}

// Flat or HKT attention, not tied by a hierarchy.
bool is_hkt(const torch::nn::Module& module) {
  return dynamic_cast<const HktAttentionImpl*>(&module) != nullptr &&
         dynamic_cast<const StrataAttentionImpl*>(&module) == nullptr;
}

// What the heads of a layer report: "levels", "tree" or "stream".
const char* form_of(const torch::nn::Module& module) {
  return is_hkt(module) ? "levels" : has_trees(module) ? "tree" : "stream";
}

// Why a layer cannot be inspected; empty when it can.
std::string layer_problem(const LayerInputs& inputs, int64_t layer, const torch::nn::Module& module) {
  if (inputs.read[layer].size() < inputs.batches.size()) return "not reached: a layer below it failed";
  for (const Tensor& x : inputs.read[layer]) {
    if (!x.isfinite().all().item<bool>()) return "its inputs are not finite";
  }
  if (is_hkt(module)) return {};  // its heads are checked one by one
  for (const auto& item : module.named_parameters()) {
    if (!item.value().isfinite().all().item<bool>()) return fmt::format("its weights {} are not finite", item.key());
  }
  return {};
}

Json inspect_layer(torch::nn::Module& module, const std::vector<Tensor>& read, const LayerInputs& inputs) {
  if (is_hkt(module)) return inspect_hkt_layer(dynamic_cast<HktAttentionImpl&>(module), read);
  return has_trees(module) ? inspect_tree_layer(module, read, inputs.trees) : inspect_stream_layer(module, read);
}

Json pictures_of(torch::nn::Module& module, const LayerInputs& inputs, int64_t layer, int64_t row, int64_t side) {
  const Tensor& read = inputs.read[layer][row];
  if (is_hkt(module)) return hkt_pictures(dynamic_cast<HktAttentionImpl&>(module), read, side);
  return has_trees(module) ? tree_pictures(module, read, *inputs.trees[row], side)
                           : stream_pictures(module, read, side);
}

// The tokens of a row, its label and its tree.
Json describe_row(const ModelCard& card, const LayerInputs& inputs, int64_t row, int64_t side) {
  const Batch& batch = inputs.batches[row];
  const std::vector<Token> tokens(batch.tokens.begin(), batch.tokens.end());  // in the order the layers see
  Json example = {{"row", row},
                  {"tokens", show_tokens(card.task, tokens, card.words)},
                  {"block", picture_block(batch.width, side)}};
  if (!card.shape.next_token) example["label"] = card.labels[batch.targets[0]];
  if (!inputs.trees.empty())
    example["tree"] = {{"child_begin", inputs.trees[row]->child_begin()}, {"children", inputs.trees[row]->children()}};
  return example;
}

}  // namespace

void declare(OptionTable& table, InspectRequest& request) {
  table.begin_group("Inspection");
  declare_split(table, request.split);
  table.add("samples", &request.samples, {.help = "Number of rows, from the first one", .min = 1, .max = kMostCount});
  table.add("examples", &request.examples,
            {.help = "Number of these rows with pictures of every head", .min = 0, .max = kMostCount});
  declare_threads(table, request.threads);
  declare_changed_data(table, request.allow_changed_data);
  declare_check_digest(table, request.check_digest);
  table.begin_group("Inspection");
}

Json inspect_model(const InspectRequest& request) {
  torch::NoGradGuard no_grad;
  LoadedModel loaded = load_model(request.model, request.check_digest);
  const ModelCard& card = loaded.card;
  Json problems = Json::array();
  for (const auto& item : loaded.model->named_parameters()) {
    if (!item.value().isfinite().all().item<bool>())
      problems.push_back(fmt::format("the weights {} are not finite", item.key()));
  }
  auto [config, data, files] = load_model_data(request.model, request.data, card, request.allow_changed_data);
  files.push_back(describe_files({model_file(request.model)})[0]);
  InspectRequest copy = request;
  OptionTable own;
  declare(own, copy);
  Json record = start_record("inspect", model_options(request.model, own, config), "cpu", std::move(files));
  const Dataset& split = data.split(request.split);
  const int64_t samples = std::min(request.samples, split.size()), layers = card.config.layers;
  if (samples == 0) throw data_error("expected rows in the {} split, got none", request.split);
  const LayerInputs inputs = read_rows(loaded, data, split, samples, problems.empty());
  double tokens = 0;
  for (const Batch& batch : inputs.batches) tokens += static_cast<double>(batch.width);

  const int64_t shown = std::min(request.examples, samples);
  const int64_t side = picture_side(shown * layers * card.config.heads);
  Json examples = Json::array();
  for (int64_t row = 0; row < shown; ++row) examples.push_back(describe_row(card, inputs, row, side));

  Json inspected = Json::array();
  Progress progress(request.quiet);
  for (int64_t layer = 0; layer < layers; ++layer) {
    progress.note(fmt::format("layer {} of {}", layer + 1, layers));
    torch::nn::Module& module = *loaded.model->attention(layer);
    const std::string problem = layer_problem(inputs, layer, module);
    if (!problem.empty()) {
      problems.push_back(fmt::format("layer {}: {}", layer, problem));
      inspected.push_back({{"layer", layer}, {"problem", problem}, {"heads", Json::array()}});
      for (Json& example : examples) example["layers"].push_back(Json::array());
      continue;
    }
    Json heads = inspect_layer(module, inputs.read[layer], inputs);
    for (const Json& head : heads) {
      if (head.contains("problem"))
        problems.push_back(
            fmt::format("layer {}, head {}: {}", layer, head["head"].get<int>(), head["problem"].get<std::string>()));
    }
    inspected.push_back({{"layer", layer}, {"heads", std::move(heads)}});
    for (int64_t row = 0; row < shown; ++row)
      examples[row]["layers"].push_back(pictures_of(module, inputs, layer, row, side));
  }
  return {{"schema", 2},
          {"record", finish_record(std::move(record))},
          {"model", request.model},
          {"task", card.task},
          {"attention", card.config.attention},
          {"form", form_of(*loaded.model->attention(0))},
          {"causal", card.shape.next_token},
          {"split", request.split},
          {"samples", samples},
          {"mean_tokens", tokens / static_cast<double>(samples)},
          {"problems", problems},
          {"layers", inspected},
          {"examples", examples}};
}

}  // namespace strata
