// Values of a config.json, with messages that name the file and the key.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace strata {

class ConfigReader {
 public:
  using Json = nlohmann::json;

  ConfigReader(const std::string& text, std::string where) : json_(parse_json<Json>(text)), where_(std::move(where)) {
    if (!json_.is_object()) throw data_error("{}: expected a JSON object, got {}", where_, json_kind(json_, text));
  }
  ConfigReader(Json json, std::string where) : json_(std::move(json)), where_(std::move(where)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }

  // A whole number; `otherwise` where there is none, and an error if that is negative.
  int64_t number(const char* key, int64_t otherwise, int64_t most = int64_t{1} << 24) const {
    if (!has(key)) {
      if (otherwise >= 0) return otherwise;
      throw data_error("{}: expected a number {}, found none", where_, key);
    }
    if (!json_[key].is_number_unsigned() || json_[key].get<uint64_t>() > static_cast<uint64_t>(most))
      throw data_error("{}: {}: expected a whole number up to {}, got {}", where_, key, most, shown(json_[key].dump()));
    return json_[key].get<int64_t>();
  }
  double real(const char* key, double otherwise, double least, double most) const {
    if (!has(key)) return otherwise;
    const double value = json_[key].is_number() ? json_[key].get<double>() : least - 1;
    if (!(value >= least && value <= most))
      throw data_error("{}: {}: expected a number from {} to {}, got {}", where_, key, least, most,
                       shown(json_[key].dump()));
    return value;
  }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_[key].is_boolean())
      throw data_error("{}: {}: expected true or false, got {}", where_, key, shown(json_[key].dump()));
    return json_[key].get<bool>();
  }
  std::string word(const char* key, const std::string& otherwise) const {
    return has(key) && json_[key].is_string() ? json_[key].get<std::string>() : otherwise;
  }
  // An object; empty where there is none.
  ConfigReader part(const char* key) const {
    if (has(key) && !json_[key].is_object())
      throw data_error("{}: {}: expected an object, got {}", where_, key, shown(json_[key].dump()));
    return {has(key) ? json_[key] : Json::object(), where_ + ": " + key};
  }

 private:
  Json json_;
  std::string where_;
};

}  // namespace strata
