#include "inject/experiment.h"

#include <algorithm>

#include "inject/experiment_data.h"
#include "inject/scorer.h"
#include "inject/selection.h"
#include "inject/timing.h"
#include "train/record.h"
#include "util/error.h"

namespace strata {
namespace {

class Injector {
 public:
  Injector(const InjectOptions& options, Progress& progress)
      : o_(options), progress_(progress), host_(Host::open(options.model, options.length, options.check_digest)) {}

  Json run() {
    read_data();
    Json record = start_record("inject", options_record(), "cpu", files_read());
    Json json = {{"schema", 1},
                 {"model", o_.model},
                 {"layers", host_->layers()},
                 {"heads", host_->heads()},
                 {"hidden", host_->hidden()},
                 {"causal", host_->is_causal()},
                 {"longest", host_->longest()},
                 {"exact_special", exact_special() && !host_->is_causal()},
                 {"budget", o_.budget}};
    const auto texts = static_cast<double>(data_.unlabelled.size());
    ExperimentProgress progress(
        progress_, texts + static_cast<double>(data_.train.texts.size() + passes() * data_.test.texts.size()));
    const GapTable table = measure_gaps(*host_, data_.unlabelled, recipes(), exact_special(), o_.batch,
                                        [&](int64_t done) { progress.show(static_cast<double>(done), "gaps"); });
    progress.finish_part(texts);
    const InjectionSelection selection = make_selection(table);
    json["gaps"] = to_json(table);
    json["gaps"]["texts"] = data_.unlabelled.size();
    json["gaps"]["tokens"] = mean_tokens(data_.unlabelled);
    json["plan"] = to_json(selection);
    if (measured()) {
      Scorer scorer(*host_, o_, data_, progress);
      json["test"] = describe_test(scorer);
      json["before"] = scorer.score({}, "before");
      json["after"] = scorer.score(selection, "after");
      if (o_.curve) json["curve"] = curve(scorer, table, json["before"]);
    }
    progress_.finish();
    if (o_.times && !o_.lengths.empty() && !selection.layers.empty()) {
      progress_.show("measuring time and memory", true);
      json["time"] = time_by_length(*host_, selection, selection.layers.back().trees.front(), o_.lengths, 0.5);
      progress_.finish();
    }
    add_example(json, selection);
    json["record"] = finish_record(std::move(record));
    return json;
  }

 private:
  bool exact_special() const { return !o_.approximate_special; }
  bool measured() const { return !data_.test.texts.empty(); }
  // Over the test rows.
  size_t passes() const { return 2 + (o_.curve ? 2 * static_cast<size_t>(host_->layers()) : 0); }

  Json options_record() const {
    InjectOptions copy = o_;
    OptionTable table;
    declare(table, copy);
    Json options = {{"model", o_.model}};
    options.update(table.record());
    return options;
  }
  std::vector<fs::path> files_read() const {
    std::vector<fs::path> files = {o_.model};
    for (const std::string& file : {o_.train, o_.test, o_.texts}) {
      if (!file.empty()) files.emplace_back(file);
    }
    return files;
  }

  // ---- data

  void read_data() {
    data_ = read_experiment_data(*host_, o_, progress_);
    if (!o_.train.empty() && !host_->has_features())
      throw usage_error("--train: {} has its own head; remove --train, and pass unlabelled texts with --texts",
                        o_.model);
    if (measured() && !host_->is_causal() && o_.train.empty() && host_->labels().empty())
      throw usage_error("--train: expected labelled texts to fit a linear head on, because {} has no head", o_.model);
    if (host_->is_causal() || !measured()) data_.train = {};
  }

  static double mean_tokens(const std::vector<HostText>& texts) {
    double tokens = 0;
    for (const HostText& text : texts) tokens += static_cast<double>(text.tokens());
    return tokens / static_cast<double>(texts.size());
  }

  // ---- plans

  std::vector<TreeRecipe> recipes() const {
    if (o_.tree == "best") return all_recipes(host_->is_causal());
    if (host_->is_causal() && o_.tree != "balanced")
      throw usage_error("--tree: expected balanced, got {}; a causal model attends by streaming HSA on a balanced tree",
                        o_.tree);
    return {{o_.tree, o_.branching}};
  }

  // `auto` uses one tree per layer. Otherwise, with "best", every text uses the best of the trees within the budget.
  InjectionSelection make_selection(const GapTable& table) const {
    if (o_.layers == "auto") return {choose_layers(table, o_.cut, budget()), exact_special()};
    InjectionSelection selection{{}, exact_special()};
    for (const int64_t layer : parse_layers(o_.layers, host_->layers())) {
      const bool one = o_.tree != "best" || host_->is_causal();
      selection.layers.push_back({layer, one ? std::vector{table.recipes[table.best_recipe(layer, budget())]}
                                             : table.candidates(layer, budget())});
    }
    return selection;
  }

  // A tree that is named by --tree has no budget.
  double budget() const { return o_.tree == "best" ? o_.budget : 1.0; }

  // ---- the curve

  // One layer more at a time, in the order of the paper and by the gaps, at the same cost.
  Json curve(Scorer& scorer, const GapTable& table, const Json& before) {
    Json late = Json::array({before}), chosen = Json::array({before});
    const std::vector<int64_t> order = late_order(host_->layers());
    InjectionSelection selection{{}, exact_special()};
    for (const int64_t layer : order) {
      selection.layers.push_back({layer, {table.recipes[table.best_recipe(layer, budget())]}});
      late.push_back(scorer.score(selection, fmt::format("curve, {} late layers", selection.layers.size())));
      double saved = 0;
      for (const LayerSelection& one : selection.layers) saved += 1 - cost_of(table, one.trees[0]);
      const double cut = std::max(0.0, saved / static_cast<double>(host_->layers()) - 1.0 / kCutSteps);
      chosen.push_back(
          scorer.score({choose_layers(table, cut, std::max(budget(), largest_cost(table, selection))), exact_special()},
                       fmt::format("curve, {} layers by the gap", selection.layers.size())));
    }
    return {{"late", late}, {"auto", chosen}};
  }

  static double cost_of(const GapTable& table, const TreeRecipe& recipe) {
    for (size_t r = 0; r < table.recipes.size(); ++r) {
      if (table.recipes[r].name() == recipe.name()) return table.costs[r];
    }
    return 1;
  }
  static double largest_cost(const GapTable& table, const InjectionSelection& selection) {
    double largest = 0;
    for (const LayerSelection& layer : selection.layers) largest = std::max(largest, cost_of(table, layer.trees[0]));
    return largest;
  }

  // ---- JSON

  Json describe_test(const Scorer& scorer) const {
    const std::vector<HostText>& texts = data_.test.texts;
    const bool causal = host_->is_causal(), own = scorer.has_own_head();
    Json json = {{"rows", texts.size()},
                 {"tokens", mean_tokens(texts)},
                 {"cut", std::count_if(texts.begin(), texts.end(), [](const HostText& text) { return text.cut; })},
                 {"measure", causal ? "nats per token" : "accuracy"},
                 {"head", causal ? "next token"
                          : own  ? "own"
                                 : "linear"}};
    if (!own && !causal) json["train_rows"] = data_.train.texts.size();
    return json;
  }

  static Json to_json(const GapTable& table) {
    Json json = {{"trees", Json::array()}, {"costs", table.costs}, {"nats_per_token", table.gaps}};
    for (const TreeRecipe& recipe : table.recipes) json["trees"].push_back(recipe.name());
    return json;
  }

  static Json to_json(const InjectionSelection& selection) {
    Json json = Json::array();
    for (const LayerSelection& layer : selection.layers) {
      json.push_back({{"layer", layer.layer}, {"trees", Json::array()}});
      for (const TreeRecipe& recipe : layer.trees) json.back()["trees"].push_back(recipe.name());
    }
    return json;
  }

  // The tree of the first text, for the report.
  void add_example(Json& json, const InjectionSelection& selection) const {
    if (selection.layers.empty() || host_->is_causal()) return;
    const HostText& text = data_.unlabelled.front();
    const Tree tree = selection.layers.back().trees.front().make(*host_, text);
    json["example"] = {{"tokens", host_->show(text)},
                       {"recipe", selection.layers.back().trees.front().name()},
                       {"tree", {{"child_begin", tree.child_begin()}, {"children", tree.children()}}}};
  }

  const InjectOptions& o_;
  Progress& progress_;
  const std::unique_ptr<Host> host_;
  ExperimentData data_;
};

}  // namespace

Json run_injection(const InjectOptions& options, Progress& progress) {
  torch::NoGradGuard no_grad;
  return Injector(options, progress).run();
}

}  // namespace strata
