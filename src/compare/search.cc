#include "compare/search.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "util/error.h"
#include "util/text.h"

namespace strata {
namespace {

constexpr double kLowest = 1e-8, kHighest = 10;  // the highest that --learning-rate takes
constexpr int kMostExtensions = 3;

// The next rate beyond the best one if that is an edge; 0 if it is none, or at the limit.
double beyond(const RateChoice& choice) {
  const std::map<double, double>& scores = choice.scores;
  const auto at = scores.find(choice.rate);
  double next = 0;
  if (at == scores.begin()) next = choice.rate * choice.rate / std::next(at)->first;
  if (std::next(at) == scores.end()) next = choice.rate * choice.rate / std::prev(at)->first;
  next = std::stod(fmt::format("{:.6g}", next));  // 0.004, not 0.0040000000000000001
  return next >= kLowest && next <= kHighest ? next : 0;
}

void choose(RateChoice& choice, bool lower_is_better) {
  double best = NAN;
  for (const auto& [rate, score] : choice.scores) {
    if (std::isnan(score) || (!std::isnan(best) && (lower_is_better ? score >= best : score <= best))) continue;
    best = score;
    choice.rate = rate;
  }
  if (std::isnan(best)) {
    throw Error(ExitCode::kFailure,
                fmt::format("--search-rates: every run of {} diverged; give lower rates", choice.attention));
  }
  choice.at_edge = choice.rate == choice.scores.begin()->first || choice.rate == choice.scores.rbegin()->first;
}

}  // namespace

std::vector<double> parse_rates(const std::vector<std::string>& words) {
  std::vector<double> rates;
  for (const std::string& word : words) {
    double rate = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), rate);
    if (error != std::errc() || end != word.data() + word.size() || !(rate >= kLowest && rate <= kHighest))
      throw usage_error("--search-rates: expected learning rates of {:g} to {:g}, got {}", kLowest, kHighest,
                        shown(word));
    rates.push_back(rate);
  }
  std::sort(rates.begin(), rates.end());
  rates.erase(std::unique(rates.begin(), rates.end()), rates.end());
  if (rates.size() < 2) throw usage_error("--search-rates: expected at least two learning rates, got {}", rates.size());
  return rates;
}

std::vector<RateChoice> search_rates(std::vector<Variant>& variants, const std::vector<double>& rates,
                                     bool lower_is_better, const TryVariants& try_variants) {
  struct Trial {
    size_t choice;
    double rate;
  };
  std::vector<RateChoice> choices;
  std::vector<size_t> searched;  // the variant of each choice
  std::vector<Trial> trials;
  for (size_t v = 0; v < variants.size(); ++v) {
    if (variants[v].has_rate) continue;
    for (const double rate : rates) trials.push_back({choices.size(), rate});
    choices.push_back({variants[v].name, {}});
    searched.push_back(v);
  }
  for (int extension = 0; !trials.empty(); ++extension) {
    std::vector<Variant> tried;
    for (const Trial& trial : trials) {
      tried.push_back(variants[searched[trial.choice]]);
      tried.back().name += fmt::format(":learning_rate={:g}", trial.rate);
      tried.back().config.train.learning_rate = trial.rate;
    }
    const std::vector<double> scores = try_variants(tried);
    for (size_t t = 0; t < trials.size(); ++t) choices[trials[t].choice].scores[trials[t].rate] = scores[t];
    trials.clear();
    for (size_t c = 0; c < choices.size(); ++c) {
      choose(choices[c], lower_is_better);
      const double next = extension < kMostExtensions ? beyond(choices[c]) : 0;
      if (next > 0) trials.push_back({c, next});
    }
  }
  for (size_t c = 0; c < choices.size(); ++c) variants[searched[c]].config.train.learning_rate = choices[c].rate;
  return choices;
}

Json to_json(const std::vector<RateChoice>& choices) {
  Json all = Json::array();
  for (const RateChoice& choice : choices) {
    Json tried = Json::array();
    for (const auto& [rate, score] : choice.scores)
      tried.push_back({{"learning_rate", rate}, {"valid", std::isnan(score) ? Json() : Json(score)}});
    all.push_back({{"name", choice.attention},
                   {"learning_rate", choice.rate},
                   {"at_edge", choice.at_edge},
                   {"tried", std::move(tried)}});
  }
  return all;
}

std::vector<std::string> search_lines(const Json& results) {
  std::vector<std::string> lines;
  if (!results.contains("search")) return lines;
  for (const Json& choice : results["search"].at("attentions")) {
    std::vector<std::string> tried;
    for (const Json& one : choice.at("tried")) {
      const std::string score =
          one.at("valid").is_null() ? "diverged" : fmt::format("{:.2f}", one["valid"].get<double>());
      tried.push_back(fmt::format("{:g}: {}", one.at("learning_rate").get<double>(), score));
    }
    lines.push_back(fmt::format("learning rate of {}: {:g}{} (validation {})", choice.at("name").get<std::string>(),
                                choice.at("learning_rate").get<double>(),
                                choice.at("at_edge").get<bool>() ? ", an edge of what was tried" : "",
                                fmt::join(tried, ", ")));
  }
  return lines;
}

}  // namespace strata
