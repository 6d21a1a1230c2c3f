#include "compare/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compare/search.h"

namespace strata {
namespace {

std::string or_dash(const Json& value, const char* format) {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

std::string markdown(const Table& table) {
  std::string text = fmt::format("| {} |\n|", fmt::join(table.header, " | "));
  for (size_t column = 0; column < table.header.size(); ++column) text += "---|";
  text += "\n";
  for (const auto& row : table.rows) text += fmt::format("| {} |\n", fmt::join(row, " | "));
  return text;
}

// A terminal may not show the sign.
std::string plain(const std::string& cell) {
  constexpr std::string_view kSign = "±";
  const size_t at = cell.find(kSign);
  return at == std::string::npos ? cell : cell.substr(0, at) + "+-" + cell.substr(at + kSign.size());
}

}  // namespace

std::string p_text(const Json& p) {
  if (!p.is_number()) return "-";
  return p.get<double>() < 1e-4 ? "< 0.0001" : fmt::format("{:.4f}", p.get<double>());
}

Table attention_table(const Json& results) {
  Table table{{"attention", results.at("measure"), "validation", "parameters", "score products", "step time"}, {}};
  for (const Json& a : results.at("attentions")) {
    table.rows.push_back(
        {a.at("name"),
         fmt::format("{} ± {}", or_dash(a.at("mean"), "{:.2f}"), or_dash(a.at("standard_deviation"), "{:.2f}")),
         or_dash(a.at("valid_mean"), "{:.2f}"), or_dash(a.at("parameters"), "{:.0f}"),
         or_dash(a.at("score_ratio"), "{:.4f}") + "x", or_dash(a.at("time_ratio"), "{:.2f}") + "x"});
  }
  return table;
}

Table pair_table(const Json& results) {
  Table table{{"pair", "difference", "95% interval", "t", "p", "p, Holm"}, {}};
  for (const Json& pair : results.at("pairs")) {
    table.rows.push_back(
        {fmt::format("{} - {}", pair.at("to").get<std::string>(), pair.at("from").get<std::string>()),
         or_dash(pair.at("difference"), "{:+.2f}"),
         fmt::format("{} .. {}", or_dash(pair.at("low"), "{:+.2f}"), or_dash(pair.at("high"), "{:+.2f}")),
         or_dash(pair.at("t"), "{:.2f}"), p_text(pair.at("p")), p_text(pair.value("p_holm", Json()))});
  }
  return table;
}

Table seed_table(const Json& results) {
  Table table{{"attention", "seed", "score", "valid_score", "parameters", "score_ratio", "step_milliseconds"}, {}};
  const int64_t first_seed = results.value("first_seed", int64_t{1});
  auto number = [](const Json& value) { return fmt::format("{}", value.get<double>()); };
  for (const Json& a : results.at("attentions")) {
    const Json &scores = a.at("scores"), &valid = a.at("valid");
    for (size_t seed = 0; seed < scores.size(); ++seed) {
      table.rows.push_back({a.at("name"), fmt::format("{}", first_seed + static_cast<int64_t>(seed)),
                            number(scores[seed]), seed < valid.size() ? number(valid[seed]) : "",
                            number(a.at("parameters")), number(a.at("score_ratio")),
                            number(a.at("step_milliseconds"))});
    }
  }
  return table;
}

std::string to_text(const Json& results) {
  Table table = attention_table(results);
  table.header[0] = results.at("task");
  table.rows.insert(table.rows.begin(), table.header);
  std::vector<size_t> widths = {10, 18, 10, 10, 14, 9};
  for (const auto& row : table.rows) widths[0] = std::max(widths[0], row[0].size() + 1);
  std::string text;
  for (const auto& row : table.rows) {
    text += fmt::format("{:<{}}", row[0], widths[0]);
    for (size_t column = 1; column < row.size(); ++column)
      text += fmt::format("{}{:>{}}", column == 1 ? " " : "  ", plain(row[column]), widths[column]);
    text += "\n";
  }
  return text;
}

std::string to_markdown(const Json& results) {
  std::string text = markdown(attention_table(results)) + "\n" + markdown(pair_table(results));
  for (const std::string& line : search_lines(results)) text += fmt::format("\n- {}", line);
  return text + (text.back() == '\n' ? "" : "\n");
}

std::string to_csv(const Json& results) {
  const Table table = seed_table(results);
  std::string text = fmt::format("{}\n", fmt::join(table.header, ","));
  for (const auto& row : table.rows) text += fmt::format("{}\n", fmt::join(row, ","));
  return text;
}

}  // namespace strata
