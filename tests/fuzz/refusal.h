// What a reader of the command may throw.
#pragma once

#include "fuzz.h"
#include "util/error.h"
#include "util/text.h"

namespace strata::fuzz {

// A message as a terminal gets it has no control characters but line ends.
inline void check_shown(const std::string& message) {
  check_message(message);
  for (const char c : shown_message(message))
    require(c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f), "a message without control characters");
}

// Whether the work is done. A refusal is an Error with words; any other exception ends the program.
template <class Work>
bool accepts(const Work& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    check_shown(error.what());
    require(error.code() == ExitCode::kUsage || error.code() == ExitCode::kData || error.code() == ExitCode::kOutput,
            "a refusal that names its kind");
    return false;
  }
}

}  // namespace strata::fuzz
