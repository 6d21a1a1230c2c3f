// Messages about JSON.
#pragma once

#include <string>

namespace strata {

// What a parsed text is, for a message that expected something else: "an array", "a number", "null", "invalid JSON".
template <class Json>
std::string json_kind(const Json& json) {
  if (json.is_discarded()) return "invalid JSON";
  if (json.is_null()) return "null";
  return (json.is_array() || json.is_object() ? "an " : "a ") + std::string(json.type_name());
}

}  // namespace strata
