#include "train/track.h"

#include "model/hkt_attention.h"

namespace strata {

using torch::Tensor;

std::vector<std::shared_ptr<HktAttentionImpl>> hkt_layers(const SequenceModel& model) {
  std::vector<std::shared_ptr<HktAttentionImpl>> layers;
  for (int64_t l = 0; l < model->config.layers; ++l) {
    if (auto layer = std::dynamic_pointer_cast<HktAttentionImpl>(model->attention(l))) layers.push_back(layer);
  }
  return layers;
}

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

}  // namespace strata
