#include "util/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "util/text.h"

namespace strata {

bool on_terminal() {
  static const bool terminal = [] {
    const char* const kind = std::getenv("TERM");
    return isatty(STDERR_FILENO) == 1 && kind != nullptr && std::string(kind) != "dumb";
  }();
  return terminal;
}

std::string duration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

std::string bar(double share, int width) {
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width));
  return fmt::format("[{:#<{}}{:-<{}}]", "", full, "", width - full);
}

void Progress::show(const std::string& line, bool force) {
  if (quiet_) return;
  const auto now = std::chrono::steady_clock::now();
  const auto pause = on_terminal() ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10000);
  if (!force && now - last_ < pause) return;
  last_ = now;
  if (on_terminal()) {
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    open_ = true;
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
}

void Progress::note(const std::string& line) {
  if (quiet_) return;
  if (open_) std::fprintf(stderr, "\r\033[K");
  open_ = false;
  std::fprintf(stderr, "%s\n", shown_message(line).c_str());
}

void Progress::finish() {
  if (open_) std::fprintf(stderr, "\n");
  open_ = false;
}

}  // namespace strata
