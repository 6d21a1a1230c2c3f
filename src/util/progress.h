// Progress for people, on standard error: one line that renews itself on a terminal, a plain line now and then
// elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace strata {

bool on_terminal();
std::string duration(double seconds);           // "1:05", "2:00:09"
std::string bar(double share, int width = 24);  // "[#####-------]"

class Progress {
 public:
  explicit Progress(bool quiet = false) : quiet_(quiet) {}

  // Shows `line` if it is time to: a few times a second on a terminal, every ten seconds elsewhere, or when `force`d.
  void show(const std::string& line, bool force = false);
  // A line that stays.
  void note(const std::string& line);
  // Ends the line that renews itself.
  void finish();

 private:
  bool quiet_, open_ = false;
  std::chrono::steady_clock::time_point last_{};
};

// Time left by the pace since the start of this process.
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
