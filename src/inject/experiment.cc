#include "inject/experiment.h"

#include <algorithm>
#include <numeric>

#include "inject/experiment_data.h"
#include "inject/linear_head.h"
#include "inject/plan.h"
#include "inject/timing.h"
#include "train/record.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace strata {
namespace {

using torch::Tensor;

class Injector {
 public:
  Injector(const InjectOptions& options, Progress& progress)
      : o_(options), progress_(progress), host_(Host::open(options.model, options.length)) {}

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
    clock_ = Clock(0);
    work_ = static_cast<double>(data_.unlabelled.size() + data_.train.texts.size() +
                                (measured() ? passes() * data_.test.texts.size() : 0));
    const GapTable table = measure_gaps(*host_, data_.unlabelled, recipes(), exact_special(), o_.batch,
                                        [&](int64_t done) { show(static_cast<double>(done), "gaps"); });
    done_ += static_cast<double>(data_.unlabelled.size());
    const InjectionPlan plan = make_plan(table);
    json["gaps"] = to_json(table);
    json["gaps"]["texts"] = data_.unlabelled.size();
    json["gaps"]["tokens"] = mean_tokens(data_.unlabelled);
    json["plan"] = to_json(plan);
    if (measured()) {
      fit_head();
      json["test"] = {
          {"rows", data_.test.texts.size()},
          {"tokens", mean_tokens(data_.test.texts)},
          {"cut", std::count_if(data_.test.texts.begin(), data_.test.texts.end(), [](const auto& t) { return t.cut; })},
          {"measure", host_->is_causal() ? "nats per token" : "accuracy"},
          {"head", host_->is_causal() ? "next token"
                   : own_head()       ? "own"
                                      : "linear"}};
      if (!own_head() && !host_->is_causal()) json["test"]["train_rows"] = data_.train.texts.size();
      json["before"] = evaluate({}, "before");
      json["after"] = evaluate(plan, "after");
      if (o_.curve) json["curve"] = curve(table, json["before"]);
    }
    progress_.finish();
    if (o_.times && !o_.lengths.empty() && !plan.layers.empty()) {
      progress_.show("measuring time and memory", true);
      json["time"] = time_by_length(*host_, plan, plan.layers.back().trees.front(), o_.lengths, 0.5);
      progress_.finish();
    }
    add_example(json, plan);
    json["record"] = finish_record(std::move(record));
    return json;
  }

 private:
  bool exact_special() const { return !o_.approximate_special; }
  bool measured() const { return !data_.test.texts.empty(); }
  bool own_head() const { return o_.train.empty(); }  // otherwise a linear one is fitted
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

  void show(double done, const std::string& what) {
    if (interrupted()) throw Error(ExitCode::kInterrupted, "interrupted; nothing was written");
    const double all = done_ + done;
    progress_.show(fmt::format("{} {}  {} left", bar(all / work_), what,
                               clock_.left(static_cast<int64_t>(all), static_cast<int64_t>(work_))));
  }

  // ---- data

  void read_data() {
    data_ = read_experiment_data(*host_, o_, progress_);
    if (!o_.train.empty() && !host_->has_features())
      throw usage_error("--train: {} has a head of its own; leave it out, and name unlabelled texts with --texts",
                        o_.model);
    if (measured() && !host_->is_causal() && o_.train.empty() && host_->labels().empty())
      throw usage_error(
          "--train: expected labelled texts, because {} has no head of its own and a linear one is fitted", o_.model);
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
      throw usage_error("--tree: a causal model attends by streaming HSA on a balanced tree, got {}", o_.tree);
    return {{o_.tree, o_.branching}};
  }

  // `auto` takes one tree for a layer; otherwise, with "best", every text takes its own among those in the budget.
  InjectionPlan make_plan(const GapTable& table) const {
    if (o_.layers == "auto") return {choose_layers(table, o_.cut, budget()), exact_special()};
    InjectionPlan plan{{}, exact_special()};
    for (const int64_t layer : parse_layers(o_.layers, host_->layers())) {
      const bool one = o_.tree != "best" || host_->is_causal();
      plan.layers.push_back({layer, one ? std::vector{table.recipes[table.best_recipe(layer, budget())]}
                                        : table.candidates(layer, budget())});
    }
    return plan;
  }

  // A tree that was asked for by name may cost what it does.
  double budget() const { return o_.tree == "best" ? o_.budget : 1.0; }

  // ---- measures

  Tensor features_of(const std::vector<HostText>& texts, const InjectionPlan& plan, const std::string& what,
                     const std::shared_ptr<std::vector<AttentionCost>>& costs, bool own) {
    // Texts of like length together: less padding.
    std::vector<int64_t> order(texts.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return texts[a].tokens() < texts[b].tokens(); });
    std::vector<Tensor> rows(texts.size());
    for (size_t first = 0; first < order.size(); first += o_.batch) {
      std::vector<HostText> part;
      const size_t last = std::min(first + static_cast<size_t>(o_.batch), order.size());
      for (size_t i = first; i < last; ++i) part.push_back(texts[order[i]]);
      const HostOutput output = host_->run(part, plan.attention(*host_, part, costs));
      const Tensor& wanted = host_->is_causal() ? output.loss : own ? output.logits : output.features;
      if (!wanted.isfinite().all().item<bool>())
        throw data_error("{}: its outputs are not finite; its weights may be damaged", o_.model);
      for (size_t i = first; i < last; ++i) rows[order[i]] = wanted[static_cast<int64_t>(i - first)];
      show(static_cast<double>(last), what);
    }
    done_ += static_cast<double>(texts.size());
    return torch::stack(rows);
  }

  // Labels as numbers; those of a head of its own must be the model's.
  Tensor numbers(const std::vector<std::string>& labels, const std::string& file) const {
    std::vector<int64_t> numbers;
    for (const std::string& label : labels) {
      auto at = std::find(classes_.begin(), classes_.end(), label);
      // Files often have the number of a class where the model has its name.
      const bool number =
          !label.empty() && label.size() < 6 && label.find_first_not_of("0123456789") == std::string::npos;
      if (at == classes_.end() && own_head() && number && std::stoull(label) < classes_.size())
        at = classes_.begin() + std::stoll(label);
      if (at == classes_.end())
        throw data_error("{}: expected labels among {}, got \"{}\"", file, fmt::join(classes_, ", "), label);
      numbers.push_back(at - classes_.begin());
    }
    return torch::tensor(numbers);
  }

  void fit_head() {
    if (host_->is_causal()) return;
    classes_ = host_->labels();
    if (!own_head()) {
      classes_ = data_.train.labels;
      std::sort(classes_.begin(), classes_.end());
      classes_.erase(std::unique(classes_.begin(), classes_.end()), classes_.end());
      if (classes_.size() < 2)
        throw data_error("{}: expected two or more different labels, got {}", o_.train, classes_.size());
    }
    targets_ = numbers(data_.test.labels, o_.test);
    if (!own_head()) {
      const Tensor features = features_of(data_.train.texts, {}, "features", nullptr, false);
      head_ = fit_linear_head(features, numbers(data_.train.labels, o_.train), static_cast<int64_t>(classes_.size()));
    }
  }

  // {"layers", "score", "agreement", "attention_share", "flops"}: accuracy, or nats per token; rows answered as by the
  // original; attention over flat attention's, over all layers; floating-point operations of all attention, per text.
  // The first plan to be evaluated is the empty one.
  Json evaluate(const InjectionPlan& plan, const std::string& what) {
    auto costs = std::make_shared<std::vector<AttentionCost>>(host_->layers());
    const Tensor rows = features_of(data_.test.texts, plan, what, costs, own_head());
    double score = 0, agreement = 0;
    if (host_->is_causal()) {
      double foreseen = 0;
      for (const HostText& text : data_.test.texts) foreseen += static_cast<double>(text.tokens() - 1);
      score = rows.sum().item<double>() / std::max(foreseen, 1.0);
    } else {
      const Tensor answers = (own_head() ? rows : head_(rows)).argmax(-1);
      score = share_of(answers == targets_);
      if (plan.layers.empty()) original_ = answers;
      agreement = share_of(answers == original_);
    }
    AttentionCost all, injected;
    for (const AttentionCost& cost : *costs) {
      all.flat += cost.flat;
      all.spent += cost.spent;
    }
    Json layers = Json::array();
    for (const LayerPlan& layer : plan.layers) {
      layers.push_back(layer.layer);
      injected.flat += costs->at(layer.layer).flat;
      injected.spent += costs->at(layer.layer).spent;
    }
    const double per_text = 2.0 * static_cast<double>(host_->hidden()) / static_cast<double>(data_.test.texts.size());
    Json json = {{"layers", layers},
                 {"score", score},
                 {"attention_share", all.spent / all.flat},
                 {"flops", per_text * all.spent}};
    if (!host_->is_causal()) json["agreement"] = agreement;
    if (injected.flat > 0) json["injected_share"] = injected.spent / injected.flat;
    return json;
  }

  // More and more layers, in the paper's order and by the gaps, at the same cost.
  Json curve(const GapTable& table, const Json& before) {
    Json late = Json::array({before}), chosen = Json::array({before});
    const std::vector<int64_t> order = late_order(host_->layers());
    InjectionPlan plan{{}, exact_special()};
    for (const int64_t layer : order) {
      plan.layers.push_back({layer, {table.recipes[table.best_recipe(layer, budget())]}});
      late.push_back(evaluate(plan, fmt::format("curve, {} late layers", plan.layers.size())));
      double saved = 0;
      for (const LayerPlan& one : plan.layers) saved += 1 - cost_of(table, one.trees[0]);
      const double cut = std::max(0.0, saved / static_cast<double>(host_->layers()) - 1.0 / kCutSteps);
      chosen.push_back(
          evaluate({choose_layers(table, cut, std::max(budget(), largest_cost(table, plan))), exact_special()},
                   fmt::format("curve, {} layers by the gap", plan.layers.size())));
    }
    return {{"late", late}, {"auto", chosen}};
  }

  static double cost_of(const GapTable& table, const TreeRecipe& recipe) {
    for (size_t r = 0; r < table.recipes.size(); ++r) {
      if (table.recipes[r].name() == recipe.name()) return table.costs[r];
    }
    return 1;
  }
  static double largest_cost(const GapTable& table, const InjectionPlan& plan) {
    double largest = 0;
    for (const LayerPlan& layer : plan.layers) largest = std::max(largest, cost_of(table, layer.trees[0]));
    return largest;
  }

  // ---- what is written

  static Json to_json(const GapTable& table) {
    Json json = {{"trees", Json::array()}, {"costs", table.costs}, {"nats_per_token", table.gaps}};
    for (const TreeRecipe& recipe : table.recipes) json["trees"].push_back(recipe.name());
    return json;
  }

  static Json to_json(const InjectionPlan& plan) {
    Json json = Json::array();
    for (const LayerPlan& layer : plan.layers) {
      json.push_back({{"layer", layer.layer}, {"trees", Json::array()}});
      for (const TreeRecipe& recipe : layer.trees) json.back()["trees"].push_back(recipe.name());
    }
    return json;
  }

  // The tree over the first text, as the report draws it.
  void add_example(Json& json, const InjectionPlan& plan) const {
    if (plan.layers.empty() || host_->is_causal()) return;
    const HostText& text = data_.unlabelled.front();
    const Tree tree = plan.layers.back().trees.front().make(*host_, text);
    json["example"] = {{"tokens", host_->show(text)},
                       {"recipe", plan.layers.back().trees.front().name()},
                       {"tree", {{"child_begin", tree.child_begin()}, {"children", tree.children()}}}};
  }

  const InjectOptions& o_;
  Progress& progress_;
  const std::unique_ptr<Host> host_;
  ExperimentData data_;
  std::vector<std::string> classes_;
  Tensor targets_, original_;  // labels, and the original model's answers
  LinearHead head_;
  Clock clock_{0};
  double work_ = 1, done_ = 0;
};

}  // namespace

Json run_injection(const InjectOptions& options, Progress& progress) {
  torch::NoGradGuard no_grad;
  return Injector(options, progress).run();
}

}  // namespace strata
