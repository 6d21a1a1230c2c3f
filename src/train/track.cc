#include "train/track.h"

#include "inspect/inspect_gaussianity.h"
#include "train/evaluate.h"

namespace strata {
namespace {

using torch::Tensor;

constexpr int64_t kRows = 16;

std::vector<std::shared_ptr<HktAttentionImpl>> hkt_layers(const SequenceModel& model) {
  std::vector<std::shared_ptr<HktAttentionImpl>> layers;
  for (int64_t l = 0; l < model->config.layers; ++l) {
    if (auto layer = std::dynamic_pointer_cast<HktAttentionImpl>(model->attention(l))) layers.push_back(layer);
  }
  return layers;
}

}  // namespace

Json track_level_weights(const SequenceModel& model) {
  torch::NoGradGuard no_grad;
  Json layers = Json::array();
  for (const auto& layer : hkt_layers(model)) {
    if (layer->options.levels() < 2) return {};
    Json heads = Json::array();
    const Tensor weights = layer->level_weights().to(torch::kCPU, torch::kFloat).contiguous();
    for (int64_t h = 0; h < weights.size(0); ++h) {
      const auto* row = weights[h].data_ptr<float>();
      heads.push_back(std::vector<float>(row, row + weights.size(1)));
    }
    layers.push_back(std::move(heads));
  }
  return layers.empty() ? Json() : Json({{"kind", "weights"}, {"layers", layers}});
}

Json track_scores(SequenceModel& model, const ModelCard& card, const Dataset& split) {
  torch::NoGradGuard no_grad;
  const auto attention = hkt_layers(model);
  if (attention.empty()) return {};
  const bool was_training = model->is_training();
  model->eval();
  LoaderOptions options;
  options.batch = 1;
  options.goal = card.shape.next_token ? Goal::kNextToken : Goal::kClassify;
  const int64_t rows = std::min(kRows, split.size());
  std::vector<std::vector<Tensor>> inputs(attention.size());
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<Tensor> read;
    model->attention_inputs(to_input(make_batch(split, options, row), model->parameters()[0].device()), read);
    for (size_t l = 0; l < inputs.size(); ++l) inputs[l].push_back(read[l][0]);
  }
  Json layers = Json::array();
  for (size_t l = 0; l < inputs.size(); ++l) layers.push_back(track_gaussianity(*attention[l], inputs[l]));
  model->train(was_training);
  return {{"kind", "gaussianity"}, {"rows", rows}, {"layers", layers}};
}

}  // namespace strata
