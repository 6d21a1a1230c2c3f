#include "train/run_state.h"

#include <limits>
#include <stdexcept>

#include "util/error.h"
#include "util/text.h"

namespace strata {
namespace {

constexpr int64_t kMostCounted = int64_t{1} << 53;  // far more than a run counts

// A whole number from `least` to kMostCounted. Throws std::out_of_range, or what the conversion throws.
int64_t count(const Json& value, int64_t least = 0) {
  if (!value.is_number_integer()) throw std::out_of_range("expected a whole number, got " + shown(value.dump()));
  const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(kMostCounted);
  if (!fits || value.get<int64_t>() < least)
    throw std::out_of_range(fmt::format("expected a number of {} or more, got {}", least, shown(value.dump())));
  return value.get<int64_t>();
}

// JSON has no number for the sums of a run that diverges: they are null.
double sum(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

double seconds(const Json& value) {
  const auto number = value.get<double>();
  if (!(number >= 0)) throw std::out_of_range("expected a time of 0 or more, got " + shown(value.dump()));
  return number;
}

}  // namespace

Json RunState::to_json() const {
  return {{"step", step},
          {"train_seconds", train_seconds},
          {"window", {window.loss, window.correct, window.counted, window.tokens, window.start_seconds}},
          {"best", {{"loss", best.loss}, {"accuracy", best.accuracy}, {"rows", best.rows}}},
          {"best_step", best_step},
          {"stale", stale},
          {"stopped_early", stopped_early},
          {"adamw_steps", Json(adamw_steps)}};
}

RunState RunState::from_json(const Json& json, const std::string& where) {
  RunState state;
  try {
    state.step = count(json.at("step"));
    state.train_seconds = seconds(json.at("train_seconds"));
    const Json& window = json.at("window");
    state.window = {sum(window.at(0)), sum(window.at(1)), count(window.at(2)), count(window.at(3)),
                    seconds(window.at(4))};
    const Json& best = json.at("best");
    state.best = {sum(best.at("loss")), sum(best.at("accuracy")), count(best.at("rows"))};
    state.best_step = count(json.at("best_step"), -1);
    state.stale = count(json.at("stale"));
    state.stopped_early = json.at("stopped_early").get<bool>();
    const Json& steps = json.at("adamw_steps");
    if (!steps.is_object()) throw std::out_of_range("expected the steps of parameters by their names");
    for (const auto& [name, taken] : steps.items()) state.adamw_steps[name] = count(taken, 1);
  } catch (const Json::exception& error) {
    throw output_error("{}: the state of the run is damaged ({})", where, shown(error.what(), 200));
  } catch (const std::out_of_range& error) {
    throw output_error("{}: the state of the run is damaged ({})", where, error.what());
  }
  return state;
}

}  // namespace strata
