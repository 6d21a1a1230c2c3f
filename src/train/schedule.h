// The learning rate at a step.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace strata {

// With u the share of the way through warm-up (0 .. 1) and w that through the rest:
//   one-cycle  rises along half a cosine from rate / 25 to rate, and falls along half a cosine to rate / 10^4
//              (Smith and Topin 2017)
//   cosine     rises in a line from 0, and falls along half a cosine to 0
//   constant   rises in a line from 0, and stays
inline double learning_rate_at(const std::string& schedule, double rate, double warmup, int64_t step, int64_t steps) {
  const double warm_steps = warmup * static_cast<double>(steps);
  const double at = static_cast<double>(step);
  auto cosine = [](double from, double to, double share) {
    return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * std::clamp(share, 0.0, 1.0)));
  };
  if (at < warm_steps) {
    return schedule == "one-cycle" ? cosine(rate / 25, rate, at / warm_steps) : rate * (at + 1) / (warm_steps + 1);
  }
  if (schedule == "constant") return rate;
  const double left = std::max(1.0, static_cast<double>(steps) - warm_steps);
  return cosine(rate, schedule == "one-cycle" ? rate / 1e4 : 0.0, (at - warm_steps) / left);
}

}  // namespace strata
