#include "inspect/layer_scores.h"

namespace strata {

using torch::Tensor;

LayerScores layer_scores(torch::nn::Module& layer, const Tensor& input) {
  torch::NoGradGuard no_grad;
  LayerScores scores;
  auto dense = [](const Tensor& t) { return t.defined() ? t.to(torch::kDouble).contiguous() : t; };
  const Tensor x = input.unsqueeze(0);
  if (auto* hsa = dynamic_cast<HsaAttentionImpl*>(&layer)) {
    const std::vector<Tensor> qkv = hsa->project(x);
    scores.q = {dense(qkv[0])};
    scores.k = {dense(qkv[1])};
    scores.level_weights = torch::ones({scores.heads(), 1}, torch::kDouble);
    scores.positions = dense(hsa->position_table());
    return scores;
  }
  auto& strata = dynamic_cast<StrataAttentionImpl&>(layer);
  for (const Tensor& states : strata.pyramid(x)) {
    const auto [q, k] = strata.project(states, static_cast<int64_t>(scores.q.size()));
    scores.q.push_back(dense(q));
    scores.k.push_back(dense(k));
  }
  scores.level_weights = dense(strata.level_weights());
  const auto parameters = strata.named_parameters();  // outlives the pointer into it
  if (const Tensor* bias = parameters.find("sibling_bias")) scores.positions = dense(*bias);
  return scores;
}

bool has_trees(const torch::nn::Module& layer) {
  if (const auto* hsa = dynamic_cast<const HsaAttentionImpl*>(&layer)) return !hsa->options.streaming();
  return dynamic_cast<const StrataAttentionImpl&>(layer).strata_options.form() == StrataForm::kTree;
}

StreamForm stream_form(const torch::nn::Module& layer) {
  if (const auto* hsa = dynamic_cast<const HsaAttentionImpl*>(&layer)) return {hsa->options.branching(), 1, false};
  const StrataAttentionOptions& o = dynamic_cast<const StrataAttentionImpl&>(layer).strata_options;
  return {o.branching(), o.near(), o.form() == StrataForm::kBothSides};
}

}  // namespace strata
