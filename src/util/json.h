// JSON from files: parsed with a limit of depth, and messages about it.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace strata {

// Deeper values would overflow the stack where they are copied, printed or destroyed.
inline constexpr int kMaxJsonDepth = 100;

// Whether brackets outside strings are nested deeper than the limit. Also right for text that is not JSON.
inline bool is_nested_too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// The value of a text; discarded if it is not JSON, or nested too deep. Every JSON text is parsed by this function,
// except the headers of safetensors files, which have a limit of their own. The parser would take a zero byte for the
// end, and accept anything behind it.
template <class Json>
Json parse_json(std::string_view text) {
  if (is_nested_too_deep(text) || text.find('\0') != std::string_view::npos) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// What a parsed text is, for a message that expected something else: "an array", "a number", "null", "invalid JSON".
template <class Json>
std::string json_kind(const Json& json, std::string_view text = {}) {
  if (json.is_discarded() && is_nested_too_deep(text))
    return fmt::format("JSON that is nested deeper than {} levels", kMaxJsonDepth);
  if (json.is_discarded()) return "invalid JSON";
  if (json.is_null()) return "null";
  return (json.is_array() || json.is_object() ? "an " : "a ") + std::string(json.type_name());
}

}  // namespace strata
