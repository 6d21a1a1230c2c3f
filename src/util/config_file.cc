#include "util/config_file.h"

#include <algorithm>
#include <cmath>

#ifdef STRATA_TOML
#include <toml++/toml.h>
#endif

#include "util/error.h"
#include "util/json.h"

namespace strata {
namespace {

using Json = nlohmann::ordered_json;

#ifdef STRATA_TOML
// The end of a string or comment of TOML that begins at `at`.
size_t skip_quoted(const std::string& text, size_t at) {
  const char quote = text[at];
  if (quote == '#') return std::min(text.find('\n', at), text.size());
  const bool lines = text.compare(at, 3, std::string(3, quote)) == 0;
  const std::string end = lines ? std::string(3, quote) : std::string(1, quote);
  for (at += end.size(); at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (text.compare(at, end.size(), end) == 0) {
      return at + end.size();
    } else if (text[at] == '\n' && !lines) {
      return at;  // not closed: the parser says so
    }
  }
  return text.size();
}

// Whether brackets and the dots of keys nest tables and lists deeper than the limit. The parser counts brackets alone.
bool is_toml_too_deep(const std::string& text) {
  std::vector<size_t> dots = {0};  // of the current key, inside each open bracket
  size_t all = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'' || c == '#') {
      at = skip_quoted(text, at);
      continue;
    }
    ++at;
    if (c == '.') {
      ++dots.back(), ++all;
    } else if (c == '[' || c == '{') {
      dots.push_back(0);
    } else if (c == ',' || c == '\n' || c == ']' || c == '}') {
      all -= dots.back();
      dots.back() = 0;
      if ((c == ']' || c == '}') && dots.size() > 1) dots.pop_back();
    }
    if (dots.size() + all > static_cast<size_t>(kMaxJsonDepth)) return true;
  }
  return false;
}

Json from_toml(const toml::node& node, const std::string& where) {
  if (const auto* table = node.as_table()) {
    Json object = Json::object();
    for (const auto& [key, value] : *table)
      object[std::string(key.str())] = from_toml(value, fmt::format("{}: {}", where, key.str()));
    return object;
  }
  if (const auto* array = node.as_array()) {
    Json list = Json::array();
    for (const auto& item : *array) list.push_back(from_toml(item, where));
    return list;
  }
  if (const auto value = node.value_exact<bool>()) return *value;
  if (const auto value = node.value_exact<int64_t>()) return *value;
  if (const auto value = node.value_exact<double>()) {
    // JSON has no such numbers. As a word it is refused by the option it is for.
    return std::isfinite(*value) ? Json(*value) : Json(fmt::format("{}", *value));
  }
  if (const auto value = node.value_exact<std::string>()) return *value;
  throw usage_error("{}: expected a word, a number, true, false or a list of them, got a date or a time", where);
}

Json parse_toml(const std::string& text, const std::string& where) {
  if (is_toml_too_deep(text))
    throw usage_error("{}: expected at most {} levels of tables and lists, got more", where, kMaxJsonDepth);
  try {
    return from_toml(toml::parse(text, where), where);
  } catch (const toml::parse_error& error) {
    throw usage_error("{}: line {}: {}", where, error.source().begin.line, error.description());
  }
}
#else
Json parse_toml(const std::string&, const std::string& where) {
  throw usage_error("{}: this build reads only JSON configs (it has no toml++)", where);
}
#endif

}  // namespace

Json read_config(const fs::path& path) {
  const std::string text = read_file(path), where = path.string();
  if (path.extension() != ".json") return parse_toml(text, where);
  Json values = parse_json<Json>(text);
  if (!values.is_object())
    throw usage_error("{}: expected a JSON object of options, got {}", where, json_kind(values, text));
  return values;
}

}  // namespace strata
