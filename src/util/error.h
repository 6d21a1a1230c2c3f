// Errors that end a command. Each kind has its own exit code, so that scripts can distinguish them.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace strata {

enum class ExitCode {
  kOk = 0,
  kFailure = 1,        // something unexpected
  kUsage = 2,          // the command line or a config file is wrong
  kData = 3,           // data could not be downloaded or read
  kOutput = 4,         // an output folder, a checkpoint or standard output cannot be used
  kDiverged = 5,       // training ended with a loss that is not finite
  kInterrupted = 130,  // Ctrl-C: the state was saved and can be resumed
  kClosedPipe = 141,   // the reader of standard output has ended; there is no message
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

template <class... Args>
Error usage_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ExitCode::kUsage, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error data_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ExitCode::kData, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error output_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ExitCode::kOutput, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace strata
