// Progress on standard error: one line that is rewritten on a terminal, a line every ten seconds elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace strata {

bool on_terminal();                             // whether standard error is one that obeys escape sequences
std::string duration(double seconds);           // "1:05", "2:00:09"
std::string bar(double share, int width = 24);  // "[#####-------]"

class Progress {
 public:
  explicit Progress(bool quiet = false) : quiet_(quiet) {}

  // Shows `line` a few times a second on a terminal, every ten seconds elsewhere, and always if `force`.
  void show(const std::string& line, bool force = false);
  // Prints a line that stays.
  void note(const std::string& line);
  // Ends the line that is rewritten.
  void finish();

 private:
  bool quiet_, open_ = false;
  std::chrono::steady_clock::time_point last_{};
};

// Remaining time, at the average speed since the start of this process.
class Clock {
 public:
  explicit Clock(int64_t done) : first_(done), start_(std::chrono::steady_clock::now()) {}
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  std::string left(int64_t done, int64_t all) const {
    if (done <= first_) return "?";
    return duration(seconds() / static_cast<double>(done - first_) * static_cast<double>(all - done));
  }

 private:
  int64_t first_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace strata
