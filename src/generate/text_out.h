// Text that arrives token by token and is written as soon as it cannot change any more: whole characters only, and no
// part of a stop text. Bytes that belong to no character become U+FFFD.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

class TextOut {
 public:
  TextOut(std::vector<std::string> stops, std::function<void(std::string_view)> write)
      : stops_(std::move(stops)), write_(std::move(write)) {}

  // Returns false after a stop text; the text before it is written.
  bool add(std::string_view bytes);
  // The end: writes what was held back.
  void finish();
  const std::string& text() const { return text_; }  // all that was written

 private:
  void write(size_t bytes);

  std::vector<std::string> stops_;
  std::function<void(std::string_view)> write_;
  std::string held_, text_;
};

}  // namespace strata
