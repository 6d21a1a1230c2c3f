#include <cmath>
#include <tuple>

#include "compare/compare.h"
#include "util/error.h"

namespace strata {
namespace {

// NaN has no place in JSON.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

std::string or_dash(const Json& value, const char* format) {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

std::string p_text(const Json& p) {
  if (!p.is_number()) return "-";
  return p.get<double>() < 1e-4 ? "< 0.0001" : fmt::format("{:.4f}", p.get<double>());
}

}  // namespace

Json summarize(const std::vector<AttentionSummary>& attentions, const std::string& measure, bool lower_is_better) {
  Json results = {{"measure", measure},
                  {"lower_is_better", lower_is_better},
                  {"attentions", Json::array()},
                  {"pairs", Json::array()}};
  if (attentions.empty()) return results;
  const AttentionSummary& first = attentions[0];
  for (const AttentionSummary& a : attentions) {
    results["attentions"].push_back({{"name", a.name},
                                     {"scores", a.scores},
                                     {"mean", number(mean(a.scores))},
                                     {"standard_deviation", number(standard_deviation(a.scores))},
                                     {"valid", a.valid},
                                     {"valid_mean", number(mean(a.valid))},
                                     {"parameters", a.parameters},
                                     {"score_ratio", a.score_ratio},
                                     {"step_milliseconds", a.step_milliseconds},
                                     {"time_ratio", number(a.step_milliseconds / first.step_milliseconds)}});
  }
  for (size_t i = 0; i < attentions.size(); ++i) {
    for (size_t j = i + 1; j < attentions.size(); ++j) {
      const PairedTest test = paired_t_test(attentions[i].scores, attentions[j].scores);
      results["pairs"].push_back({{"from", attentions[i].name},
                                  {"to", attentions[j].name},
                                  {"difference", number(test.difference)},
                                  {"t", test.valid ? number(test.t) : Json()},
                                  {"p", test.valid ? number(test.p) : Json()},
                                  {"low", test.valid ? number(test.low) : Json()},
                                  {"high", test.valid ? number(test.high) : Json()}});
    }
  }
  return results;
}

std::string to_markdown(const Json& results) {
  std::string text =
      fmt::format("| attention | {} | validation | parameters | score FLOPs | step time |\n|---|---|---|---|---|---|\n",
                  results.at("measure").get<std::string>());
  for (const Json& a : results.at("attentions")) {
    text += fmt::format("| {} | {} ± {} | {} | {:.0f} | {:.4f}x | {}x |\n", a.at("name").get<std::string>(),
                        or_dash(a.at("mean"), "{:.2f}"), or_dash(a.at("standard_deviation"), "{:.2f}"),
                        or_dash(a.at("valid_mean"), "{:.2f}"), a.at("parameters").get<double>(),
                        a.at("score_ratio").get<double>(), or_dash(a.at("time_ratio"), "{:.2f}"));
  }
  text += "\n| pair | difference | 95% interval | t | p |\n|---|---|---|---|---|\n";
  for (const Json& pair : results.at("pairs")) {
    text += fmt::format("| {} - {} | {} | {} .. {} | {} | {} |\n", pair.at("to").get<std::string>(),
                        pair.at("from").get<std::string>(), or_dash(pair.at("difference"), "{:+.2f}"),
                        or_dash(pair.at("low"), "{:+.2f}"), or_dash(pair.at("high"), "{:+.2f}"),
                        or_dash(pair.at("t"), "{:.2f}"), p_text(pair.at("p")));
  }
  return text;
}

std::string to_csv(const Json& results) {
  std::string text = "attention,seed,score,valid_score,parameters,score_ratio,step_milliseconds\n";
  for (const Json& a : results.at("attentions")) {
    const int64_t first_seed = results.value("first_seed", int64_t{1});
    size_t seed = 0;
    for (const Json& score : a.at("scores")) {
      const Json& valid = a.at("valid");
      text += fmt::format(
          "{},{},{},{},{},{},{}\n", a.at("name").get<std::string>(), first_seed + static_cast<int64_t>(seed),
          score.get<double>(), seed < valid.size() ? fmt::format("{}", valid[seed].get<double>()) : "",
          a.at("parameters").get<double>(), a.at("score_ratio").get<double>(), a.at("step_milliseconds").get<double>());
      ++seed;
    }
  }
  return text;
}

std::vector<std::string> verdicts(const Json& results) {
  std::vector<std::string> lines;
  const bool lower = results.at("lower_is_better");
  for (const Json& pair : results.at("pairs")) {
    const auto from = pair.at("from").get<std::string>(), to = pair.at("to").get<std::string>();
    const double difference = pair.at("difference").is_number() ? pair.at("difference").get<double>() : 0.0;
    const bool to_wins = lower ? difference < 0 : difference > 0;
    const std::string gap = difference == 0 ? fmt::format("{} equals {}", to, from)
                                            : fmt::format("{} beats {} by {:.2f}", to_wins ? to : from,
                                                          to_wins ? from : to, std::abs(difference));
    if (!pair.at("p").is_number()) {
      lines.push_back(gap + " (too few seeds to test)");
      continue;
    }
    const bool sure = pair.at("p").get<double>() < 0.05;
    double low = pair.at("low"), high = pair.at("high");
    if (sure && difference < 0) std::tie(low, high) = std::pair(-high, -low);  // "beats by" has no sign
    const std::string facts = fmt::format("p = {}, 95% interval {:+.2f} .. {:+.2f}", p_text(pair.at("p")), low, high);
    lines.push_back(
        sure ? fmt::format("{} ({})", gap, facts)
             : fmt::format("{} and {} cannot be told apart: difference {:+.2f} ({})", to, from, difference, facts));
  }
  return lines;
}

}  // namespace strata
