#include <cmath>
#include <tuple>

#include "compare/compare.h"
#include "compare/tables.h"
#include "util/error.h"

namespace strata {
namespace {

// JSON has no NaN.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// p_holm of every pair that was tested: corrected for the number of these.
void add_corrected(Json& pairs) {
  std::vector<double> p;
  for (const Json& pair : pairs) {
    if (pair["p"].is_number()) p.push_back(pair["p"]);
  }
  const std::vector<double> corrected = holm(p);
  size_t at = 0;
  for (Json& pair : pairs) pair["p_holm"] = pair["p"].is_number() ? Json(corrected[at++]) : Json();
}

// Loss and accuracy of every part, means over seeds.
Json mean_parts(const std::vector<Json>& seeds) {
  Json parts = Json::array();
  for (const Json& one : seeds[0]) {
    std::vector<double> losses, accuracies;
    for (const Json& seed : seeds) {
      const Json& same = seed.at(parts.size());
      losses.push_back(same.at("loss"));
      accuracies.push_back(same.at("accuracy"));
    }
    parts.push_back({{"name", one.at("name")}, {"loss", number(mean(losses))}, {"accuracy", number(mean(accuracies))}});
  }
  return parts;
}

// p, and corrected where there are several pairs. Files of earlier versions have no corrected one.
std::string p_texts(const Json& pair, size_t pairs) {
  const std::string shown = p_text(pair.at("p")), text = (shown.front() == '<' ? "p " : "p = ") + shown;
  return pairs > 1 && pair.contains("p_holm") ? fmt::format("{}, Holm {}", text, p_text(pair["p_holm"])) : text;
}

// By the corrected p. Files of earlier versions have none.
bool is_sure(const Json& pair) {
  return pair.at("p").is_number() && pair.value("p_holm", pair.at("p").get<double>()) < 0.05;
}

// Which attention of a pair is better, by how much, and the test.
std::string verdict(const Json& pair, const Json& results) {
  const auto from = pair.at("from").get<std::string>(), to = pair.at("to").get<std::string>();
  const double difference = pair.at("difference").is_number() ? pair.at("difference").get<double>() : 0.0;
  const bool to_wins = results.at("lower_is_better").get<bool>() ? difference < 0 : difference > 0;
  const std::string gap = difference == 0 ? fmt::format("{} equals {}", to, from)
                                          : fmt::format("{} beats {} by {:.2f}", to_wins ? to : from,
                                                        to_wins ? from : to, std::abs(difference));
  if (!pair.at("p").is_number()) {
    const bool several = results.at("attentions").at(0).at("scores").size() > 1;
    return gap + (several ? " (the same in every seed: nothing to test)" : " (too few seeds to test)");
  }
  double low = pair.at("low"), high = pair.at("high");
  if (is_sure(pair) && difference < 0) std::tie(low, high) = std::pair(-high, -low);  // "beats by" is without a sign
  const std::string facts =
      fmt::format("{}, 95% interval {:+.2f} .. {:+.2f}", p_texts(pair, results.at("pairs").size()), low, high);
  return is_sure(pair)
             ? fmt::format("{} ({})", gap, facts)
             : fmt::format("no significant difference between {} and {}: {:+.2f} ({})", to, from, difference, facts);
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
    if (!a.parts.empty()) results["attentions"].back()["parts"] = mean_parts(a.parts);
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
  add_corrected(results["pairs"]);
  return results;
}

std::vector<std::string> verdicts(const Json& results) {
  constexpr size_t kMostLines = 10;
  std::vector<std::string> lines;
  const Json& pairs = results.at("pairs");
  size_t others = 0, sure = 0;
  for (const Json& pair : pairs) {
    if (pairs.size() > kMostLines && pair.at("from") != results.at("attentions").at(0).at("name")) {
      ++others;
      sure += is_sure(pair);
    } else {
      lines.push_back(verdict(pair, results));
    }
  }
  if (others > 0) {
    lines.push_back(fmt::format("{} pairs without {}, of which {} {} significantly, are in the table of pairs", others,
                                results["attentions"][0]["name"].get<std::string>(), sure,
                                sure == 1 ? "differs" : "differ"));
  }
  return lines;
}

}  // namespace strata
