// The result of every call into the core: success, or a message that says what was expected, what came and what to do.
#pragma once

#include <string>
#include <utility>

namespace strata {

enum class StatusCode { kOk, kInvalidArgument, kUnsupported, kOutOfMemory };

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace strata
