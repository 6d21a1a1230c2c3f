#include "inspect/track_scores.h"

#include "data/loader.h"
#include "inspect/inspect_gaussianity.h"
#include "train/evaluate.h"
#include "train/track.h"

namespace strata {

using torch::Tensor;

Json track_scores(SequenceModel& model, const ModelCard& card, const Dataset& split) {
  torch::NoGradGuard no_grad;
  const auto attention = hkt_layers(model);
  if (attention.empty()) return {};
  const bool was_training = model->is_training();
  model->eval();
  LoaderOptions options;
  options.batch = 1;
  options.goal = card.shape.next_token ? Goal::kNextToken : Goal::kClassify;
  constexpr int64_t kRows = 16;
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
