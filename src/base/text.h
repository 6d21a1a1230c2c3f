// Messages: text("expected ", 3, ", got ", n) joins printable values into one string.
#pragma once

#include <sstream>
#include <string>

#include "strata/status.h"

namespace strata {

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

template <class... Parts>
Status invalid(const Parts&... parts) {
  return {StatusCode::kInvalidArgument, text(parts...)};
}

}  // namespace strata
