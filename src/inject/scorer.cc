#include "inject/scorer.h"

#include <algorithm>
#include <numeric>

#include "util/error.h"
#include "util/interrupt.h"

namespace strata {

using torch::Tensor;

void ExperimentProgress::show(double done, const std::string& what) {
  if (interrupted()) throw Error(ExitCode::kInterrupted, "interrupted; nothing was written");
  const double all = done_ + done;
  progress_.show(fmt::format("{} {}  {} left", bar(all / work_), what,
                             clock_.left(static_cast<int64_t>(all), static_cast<int64_t>(work_))));
}

Scorer::Scorer(Host& host, const InjectOptions& options, const ExperimentData& data, ExperimentProgress& progress)
    : host_(host), options_(options), data_(data), progress_(progress) {
  fit_head();
}

Tensor Scorer::outputs_of(const std::vector<HostText>& texts, const InjectionSelection& selection,
                          const std::string& what, const std::shared_ptr<std::vector<AttentionCost>>& costs, bool own) {
  // Texts of similar length share a batch: less padding.
  std::vector<int64_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return texts[a].tokens() < texts[b].tokens(); });
  std::vector<Tensor> rows(texts.size());
  for (size_t first = 0; first < order.size(); first += options_.batch) {
    std::vector<HostText> part;
    const size_t last = std::min(first + static_cast<size_t>(options_.batch), order.size());
    for (size_t i = first; i < last; ++i) part.push_back(texts[order[i]]);
    const HostOutput output = host_.run(part, selection.attention(host_, part, costs));
    const Tensor& wanted = host_.is_causal() ? output.loss : own ? output.logits : output.features;
    if (!wanted.isfinite().all().item<bool>())
      throw data_error("{}: the outputs are not finite; its weights may be damaged", options_.model);
    for (size_t i = first; i < last; ++i) rows[order[i]] = wanted[static_cast<int64_t>(i - first)];
    progress_.show(static_cast<double>(last), what);
  }
  progress_.finish_part(static_cast<double>(texts.size()));
  return torch::stack(rows);
}

// Labels as numbers of classes. With its own head, the classes are those of the model.
Tensor Scorer::numbers(const std::vector<std::string>& labels, const std::string& file) const {
  std::vector<int64_t> numbers;
  for (const std::string& label : labels) {
    auto at = std::find(classes_.begin(), classes_.end(), label);
    // Many files name a class by its number.
    const bool number =
        !label.empty() && label.size() < 6 && label.find_first_not_of("0123456789") == std::string::npos;
    if (at == classes_.end() && has_own_head() && number && std::stoull(label) < classes_.size())
      at = classes_.begin() + std::stoll(label);
    if (at == classes_.end())
      throw data_error("{}: expected labels among {}, got \"{}\"", file, fmt::join(classes_, ", "), label);
    numbers.push_back(at - classes_.begin());
  }
  return torch::tensor(numbers);
}

void Scorer::fit_head() {
  if (host_.is_causal()) return;
  classes_ = host_.labels();
  if (!has_own_head()) {
    classes_ = data_.train.labels;
    std::sort(classes_.begin(), classes_.end());
    classes_.erase(std::unique(classes_.begin(), classes_.end()), classes_.end());
    if (classes_.size() < 2)
      throw data_error("{}: expected two or more different labels, got {}", options_.train, classes_.size());
  }
  targets_ = numbers(data_.test.labels, options_.test);
  if (!has_own_head()) {
    const Tensor features = outputs_of(data_.train.texts, {}, "features", nullptr, false);
    head_ =
        fit_linear_head(features, numbers(data_.train.labels, options_.train), static_cast<int64_t>(classes_.size()));
  }
}

Json Scorer::score(const InjectionSelection& selection, const std::string& what) {
  auto costs = std::make_shared<std::vector<AttentionCost>>(host_.layers());
  const Tensor rows = outputs_of(data_.test.texts, selection, what, costs, has_own_head());
  double score = 0, agreement = 0;
  if (host_.is_causal()) {
    double predicted = 0;
    for (const HostText& text : data_.test.texts) predicted += static_cast<double>(text.tokens() - 1);
    score = rows.sum().item<double>() / std::max(predicted, 1.0);
  } else {
    const Tensor answers = (has_own_head() ? rows : head_(rows)).argmax(-1);
    score = share_of(answers == targets_);
    if (selection.layers.empty()) original_ = answers;
    agreement = share_of(answers == original_);
  }
  Json json = {{"layers", Json::array()}, {"score", score}};
  for (const LayerSelection& layer : selection.layers) json["layers"].push_back(layer.layer);
  json.update(costs_of(selection, *costs));
  if (!host_.is_causal()) json["agreement"] = agreement;
  return json;
}

Json Scorer::costs_of(const InjectionSelection& selection, const std::vector<AttentionCost>& costs) const {
  AttentionCost all, injected;
  for (const AttentionCost& cost : costs) {
    all.flat += cost.flat;
    all.spent += cost.spent;
  }
  for (const LayerSelection& layer : selection.layers) {
    injected.flat += costs.at(layer.layer).flat;
    injected.spent += costs.at(layer.layer).spent;
  }
  const auto channels = static_cast<double>(host_.heads() * host_.head_size());
  const double per_text = 2.0 * channels / static_cast<double>(data_.test.texts.size());
  Json json = {{"attention_share", all.spent / all.flat}, {"flops", per_text * all.spent}};
  if (injected.flat > 0) json["injected_share"] = injected.spent / injected.flat;
  return json;
}

}  // namespace strata
