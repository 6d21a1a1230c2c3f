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
using Lines = std::map<std::string, int64_t>;

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

// place: the file and the line of the node's key
Json from_toml(const toml::node& node, const std::string& where, const std::string& place, const std::string& path,
               Lines& lines) {
  if (const auto* table = node.as_table()) {
    Json object = Json::object();
    for (const auto& [key, value] : *table) {
      const std::string name(key.str()), below = path + "/" + name;
      const auto line = static_cast<int64_t>(value.source().begin.line);
      lines[below] = line;
      object[name] = from_toml(value, where, fmt::format("{}: line {}: {}", where, line, name), below, lines);
    }
    return object;
  }
  if (const auto* array = node.as_array()) {
    Json list = Json::array();
    for (const auto& item : *array) list.push_back(from_toml(item, where, place, path, lines));
    return list;
  }
  if (const auto value = node.value_exact<bool>()) return *value;
  if (const auto value = node.value_exact<int64_t>()) return *value;
  if (const auto value = node.value_exact<double>()) {
    // JSON has no such numbers. As a word it is refused by the option it is for.
    return std::isfinite(*value) ? Json(*value) : Json(fmt::format("{}", *value));
  }
  if (const auto value = node.value_exact<std::string>()) return *value;
  throw usage_error("{}: expected a word, a number, true, false or a list of them, got a date or a time", place);
}

ConfigFile parse_toml(const std::string& text, const std::string& where) {
  if (is_toml_too_deep(text))
    throw usage_error("{}: expected at most {} levels of tables and lists, got more", where, kMaxJsonDepth);
  try {
    ConfigFile config;
    config.values = from_toml(toml::parse(text, where), where, where, "", config.lines);
    return config;
  } catch (const toml::parse_error& error) {
    throw usage_error("{}: line {}: {}", where, error.source().begin.line, error.description());
  }
}
#else
ConfigFile parse_toml(const std::string&, const std::string& where) {
  throw usage_error("{}: this build reads only JSON configs (it has no toml++)", where);
}
#endif

// The lines of the keys of a JSON text, which has been parsed: a string with a colon after it is a key.
Lines json_lines(const std::string& text) {
  Lines lines;
  std::vector<std::string> paths = {""};  // of the value that is read, inside each open bracket
  std::string word;
  int64_t line = 1, word_line = 1;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      const size_t begin = at;
      while (text[++at] != '"') at += text[at] == '\\';
      word = parse_json<Json>(text.substr(begin, at + 1 - begin)).get<std::string>();
      word_line = line;
    } else if (c == ':') {
      paths.back() = (paths.size() > 1 ? paths[paths.size() - 2] : "") + "/" + word;
      lines[paths.back()] = word_line;
    } else if (c == '{' || c == '[') {
      paths.push_back(paths.back());
    } else if (c == '}' || c == ']') {
      paths.pop_back();
    }
    line += c == '\n';
  }
  return lines;
}

// The file, and the line in which its JSON ends to be valid, if it does.
std::string json_place(const std::string& text, const std::string& where) {
  if (is_nested_too_deep(text)) return where;
  try {
    const Json whole = Json::parse(text);
    return where;
  } catch (const Json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    return fmt::format("{}: line {}", where, 1 + std::count(text.begin(), end, '\n'));
  } catch (const Json::exception&) {  // a number that no double holds; where it stands is not told
    return where;
  }
}

}  // namespace

ConfigFile read_config(const fs::path& path) {
  const std::string text = read_file(path), where = path.string();
  if (path.extension() != ".json") return parse_toml(text, where);
  Json values = parse_json<Json>(text);
  if (!values.is_object())
    throw usage_error("{}: expected a JSON object of options, got {}", json_place(text, where),
                      json_kind(values, text));
  return {values, json_lines(text)};
}

}  // namespace strata
