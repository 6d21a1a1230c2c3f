#include "inspect/inspect.h"

#include <torch/torch.h>

#include "data/loader.h"
#include "data/task.h"
#include "inspect/inspect_hkt.h"
#include "inspect/inspect_hsa.h"
#include "train/evaluate.h"
#include "train/progress.h"
#include "util/error.h"

namespace strata {

Json inspect(const InspectRequest& request) {
  torch::NoGradGuard no_grad;
  LoadedModel loaded = load_model(request.model);
  const ModelCard& card = loaded.card;
  for (const auto& item : loaded.model->named_parameters()) {
    if (!item.value().isfinite().all().item<bool>()) {
      throw output_error("{}: the weights {} are not finite; there is nothing to inspect", request.model, item.key());
    }
  }
  const TaskData data = load_task(data_of_model(request.model, request.data, card));
  const Dataset& split = data.split(request.split);
  LoaderOptions rows;
  rows.batch = 1;
  rows.goal = data.goal;
  rows.trees = tree_maker(card);

  // What every layer reads, row by row: no padding, no pooling.
  const int64_t samples = std::min(request.samples, split.size());
  std::vector<std::vector<torch::Tensor>> inputs(card.config.layers);
  std::vector<std::shared_ptr<const Tree>> trees;
  double tokens = 0;
  for (int64_t row = 0; row < samples; ++row) {
    const Batch batch = make_batch(split, rows, row);
    const std::vector<torch::Tensor> read = loaded.model->attention_inputs(to_input(batch, torch::kCPU));
    for (size_t layer = 0; layer < read.size(); ++layer) inputs[layer].push_back(read[layer][0]);
    if (!batch.trees.empty()) trees.push_back(batch.trees[0]);
    tokens += static_cast<double>(batch.width);
  }
  Json result = {{"schema", 1},
                 {"model", request.model},
                 {"task", card.task},
                 {"attention", card.config.attention},
                 {"causal", card.shape.next_token},
                 {"split", request.split},
                 {"samples", samples},
                 {"mean_tokens", tokens / static_cast<double>(samples)},
                 {"layers", Json::array()}};
  Progress progress(request.quiet);
  for (int64_t layer = 0; layer < card.config.layers; ++layer) {
    progress.note(fmt::format("layer {} of {}", layer + 1, card.config.layers));
    const auto module = loaded.model->attention(layer);
    Json heads;
    if (auto hkt = std::dynamic_pointer_cast<HktAttentionImpl>(module)) {
      heads = inspect_hkt_layer(*hkt, inputs[layer]);
    } else if (auto hsa = std::dynamic_pointer_cast<HsaAttentionImpl>(module); hsa && !trees.empty()) {
      heads = inspect_hsa_layer(*hsa, inputs[layer], trees);
    } else {
      result["problems"].push_back(fmt::format("layer {}: the streaming form of HSA has no tree to inspect", layer));
      heads = Json::array();
    }
    result["layers"].push_back({{"layer", layer}, {"heads", heads}});
  }
  return result;
}

}  // namespace strata
