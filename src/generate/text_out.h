// Text that comes token by token, given out as soon as it is certain: whole characters only, and nothing of a stop
// text. Bytes that belong to no character become U+FFFD.
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

  // Returns false when a stop text has come; what stands before it has been written.
  bool add(std::string_view bytes);
  // Nothing more will come: writes what was held back.
  void finish();
  const std::string& text() const { return text_; }  // all that was written

 private:
  void write(size_t bytes);

  std::vector<std::string> stops_;
  std::function<void(std::string_view)> write_;
  std::string held_, text_;
};

}  // namespace strata
