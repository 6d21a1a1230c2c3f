#include <cmath>

#include "train/checkpoint.h"
#include "train/schedule.h"
#include "train/track.h"
#include "train/training.h"

namespace strata {

// Waits for the device.
void Training::read_window() {
  shown_loss_ = window_.loss();
  shown_accuracy_ = window_.accuracy();
}

void Training::show() {
  if (!window_.empty() && step_ % kShowEvery == 0) shown_rate_ = window_.tokens_per_second(train_seconds_);
  progress_.show(fmt::format("{} step {}/{}  loss {:.3f}  accuracy {:.1f}%  {:.0f} tokens/s  {} left",
                             bar(static_cast<double>(step_) / static_cast<double>(steps_)), step_, steps_, shown_loss_,
                             100 * shown_accuracy_, shown_rate_, clock_.left(step_, steps_)));
}

// After read_window().
void Training::log_window() {
  if (!std::isfinite(shown_loss_)) throw diverged();
  const Json line = {{"kind", "train"},
                     {"step", step_},
                     {"steps", steps_},
                     {"epoch", static_cast<double>(step_) / static_cast<double>(steps_per_epoch_)},
                     {"loss", shown_loss_},
                     {"accuracy", shown_accuracy_},
                     {"learning_rate", learning_rate_at(c_.schedule, c_.learning_rate, c_.warmup, step_ - 1, steps_)},
                     {"tokens_per_second", window_.tokens_per_second(train_seconds_)},
                     {"train_seconds", train_seconds_}};
  if (is_writer()) metrics_->add(line);
  window_.restart(train_seconds_);
}

// Before the first step and after every epoch.
void Training::track() {
  if (!is_writer()) return;
  add_metrics(track_level_weights(model_));
  if (c_.every_epoch) add_metrics(tracker_(model_, card_, data_.valid));
}

void Training::add_metrics(Json line) {
  if (line.is_null() || !is_writer()) return;
  line["step"] = step_;
  line["epoch"] = static_cast<double>(step_) / static_cast<double>(steps_per_epoch_);
  metrics_->add(line);
}

// Better: a higher accuracy, or, for a language model, a lower loss.
bool Training::is_better(const Evaluation& now) const {
  if (best_step_ < 0) return true;
  if (data_.goal == Goal::kNextToken) return now.loss < best_.loss;
  return now.accuracy > best_.accuracy || (now.accuracy == best_.accuracy && now.loss < best_.loss);
}

void Training::evaluate_valid() {
  const Evaluation now = evaluate(model_, card_, data_.valid, evaluate_options());
  Json line = {{"kind", "valid"}};
  line.update(now.to_json());
  add_metrics(line);
  progress_.note(
      fmt::format("step {}/{}: validation loss {:.4f}, accuracy {:.2f}%", step_, steps_, now.loss, 100 * now.accuracy));
  if (is_better(now)) {
    best_ = now;
    best_step_ = step_;
    stale_ = 0;
    if (is_writer()) save_model(folder_.best(), model_, card_);
  } else if (++stale_ == c_.patience) {  // patience 0 is never reached
    stopped_early_ = true;
    progress_.note(fmt::format("no improvement in {} evaluations: stopping", stale_));
  }
  save();
}

void Training::save() {
  RunState state;
  state.step = step_;
  state.train_seconds = train_seconds_;
  state.window = window_.save();
  state.best = {best_.loss, best_.accuracy, best_.rows};
  state.best_step = best_step_;
  state.stale = stale_;
  state.stopped_early = stopped_early_;
  if (parallel_ != nullptr) parallel_->collect_moments();
  if (is_writer()) save_training(folder_.last(), *optimizer_, card_, std::move(state));
  if (parallel_ != nullptr) parallel_->release_moments();
  last_save_ = std::chrono::steady_clock::now();
}

void Training::restore(const RunState& state) {
  if (state.step > steps_)
    throw output_error("{}: expected a checkpoint of at most {} steps, as the run has, got {}", folder_.last().string(),
                       steps_, state.step);
  step_ = state.step;
  train_seconds_ = state.train_seconds;
  window_.restore(state.window);
  best_.loss = state.best.loss;
  best_.accuracy = state.best.accuracy;
  best_.rows = state.best.rows;
  best_step_ = state.best_step;
  stale_ = state.stale;
  stopped_early_ = state.stopped_early;
  progress_.note(fmt::format("resumed at step {} of {}", step_, steps_));
}

}  // namespace strata
