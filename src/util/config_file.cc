#include "util/config_file.h"

#include <cmath>

#ifdef STRATA_TOML
#include <toml++/toml.h>
#endif

#include "util/error.h"

namespace strata {
namespace {

using Json = nlohmann::ordered_json;

#ifdef STRATA_TOML
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
  Json values = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (values.is_discarded()) throw usage_error("{}: expected a JSON object of options, got invalid JSON", where);
  if (!values.is_object())
    throw usage_error("{}: expected a JSON object of options, got {} {}", where, values.is_array() ? "an" : "a",
                      values.type_name());
  return values;
}

}  // namespace strata
