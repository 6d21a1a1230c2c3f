#include "train/training.h"

#include <algorithm>

#include "data/task.h"
#include "train/checkpoint.h"
#include "train/schedule.h"
#include "train/setup.h"
#include "util/interrupt.h"
#include "util/random.h"

namespace strata {

using torch::Tensor;
using Seconds = std::chrono::duration<double>;

Training::Training(const RunConfig& config, const RunFolder& folder, bool quiet, EpochTracker tracker, Group* group,
                   bool shard_optimizer)
    : config_(config),
      folder_(folder),
      tracker_(std::move(tracker)),
      data_(load_task(config.data)),
      card_(make_card(config, data_)),
      device_(device_in(group, c_)),
      progress_(quiet),
      window_(device_) {
  if (c_.every_epoch && !tracker_) throw Error(ExitCode::kFailure, "--every-epoch: train() needs a tracker");
  if (data_.valid.rows.empty())
    throw data_error("expected validation rows, got none; raise --valid-share or --valid-rows");
  torch::manual_seed(mix(c_.seed));
  model_ = make_model(card_, config.data.embeddings);
  model_->to(device_);
  if (c_.precision == "float64") model_->to(torch::kDouble);
  optimizer_ = std::make_unique<AdamW>(*model_, c_.weight_decay);
  train_step_ = std::make_unique<TrainStep>(
      model_, *optimizer_, StepOptions{c_.clip, c_.label_smoothing, c_.precision == "bf16", c_.graphs == "auto"});
  steps_per_epoch_ = steps_per_epoch(c_, data_.train.size());
  steps_ = steps_of(c_, data_.train.size());
  eval_every_ = c_.eval_every > 0 ? c_.eval_every : steps_per_epoch_;
  for (const std::string& problem : describe_problems(data_)) progress_.note("warning: " + problem);
  if (group != nullptr) join(*group, shard_optimizer);
}

Json Training::run(bool resume) {
  if (parallel_ != nullptr) {
    resume_in_parallel(resume);
  } else if (resume && fs::exists(folder_.last())) {
    restore(load_training(folder_.last(), model_, *optimizer_, card_));
  }
  if (is_writer()) metrics_ = std::make_unique<MetricsLog>(folder_.root, step_ == 0 ? -1 : step_, c_.tensorboard);
  clock_ = Clock(step_);
  last_save_ = std::chrono::steady_clock::now();
  if (step_ == 0) track();
  while (step_ < steps_ && !stopped_early_) run_epoch(step_ / steps_per_epoch_);
  save();
  progress_.finish();
  return finish();
}

// A pass over the rows, from the current step on.
void Training::run_epoch(int64_t epoch) {
  LoaderOptions options;
  options.batch = c_.batch;
  options.goal = data_.goal;
  options.trees = tree_maker(card_);
  options.order = permutation(data_.train.size(), mix(mix(c_.seed) + static_cast<uint64_t>(epoch)));
  // Downwards, so that no augmentation shares its seed with the order of an epoch.
  options.augment = {c_.jitter, c_.hide, mix(mix(c_.seed) - 1 - static_cast<uint64_t>(epoch))};
  options.first_batch = step_ % steps_per_epoch_ * c_.accumulate;
  if (parallel_ != nullptr) {
    options.part = parallel_->group().rank();
    options.parts = parallel_->group().size();
  }
  Loader loader(data_.train, std::move(options));
  const int64_t end = std::min((epoch + 1) * steps_per_epoch_, steps_);
  while (step_ < end && !stopped_early_) {
    const auto start = std::chrono::steady_clock::now();
    watch_divergence([&] { run_step(loader); });
    ++step_;
    const bool logs = step_ % c_.log_every == 0 || step_ == steps_;
    const bool is_due = parallel_ != nullptr ? agreed_.save : is_time_to_save();
    // A GPU may still be at work on the last steps. Whatever waits for it comes behind this read, and the wait is time
    // of training.
    if (logs || is_due || step_ % kShowEvery == 0 || step_ % eval_every_ == 0 || step_ % steps_per_epoch_ == 0)
      read_window();
    const auto now = std::chrono::steady_clock::now();
    train_seconds_ += Seconds(now - start).count();
    if (logs) log_window();
    show();
    watch_divergence([&] {
      if (step_ % steps_per_epoch_ == 0 || step_ == steps_) track();
      if (step_ % eval_every_ == 0 || step_ == steps_) evaluate_valid();
    });
    if (parallel_ != nullptr ? agreed_.stop : interrupted()) {
      save();
      progress_.finish();
      throw Error(ExitCode::kInterrupted,
                  fmt::format("interrupted at step {} of {}; state saved, continue with: strata train --resume {}",
                              step_, steps_, folder_.root.string()));
    }
    const bool saved = last_save_ > now;  // with the evaluation
    if (!saved && is_due) save();
  }
}

// One step of AdamW on the mean gradient of up to `accumulate` batches.
void Training::run_step(Loader& loader) {
  std::vector<Batch> batches;
  Batch batch;
  while (static_cast<int64_t>(batches.size()) < c_.accumulate && loader.next(batch))
    batches.push_back(std::move(batch));
  // Every step has its own seed for dropout, so that a resumed run draws the same numbers.
  const uint64_t seed = mix(mix(c_.seed) ^ static_cast<uint64_t>(step_));
  const double learning_rate = learning_rate_at(c_.schedule, c_.learning_rate, c_.warmup, step_, steps_);
  if (parallel_ != nullptr) return run_parallel_step(batches, learning_rate, seed);
  const std::vector<Loss> losses = (*train_step_)(batches, learning_rate, seed);
  for (size_t n = 0; n < batches.size(); ++n) window_.add(losses[n], batches[n].real_tokens);
}

// The operators refuse weights that are not finite. The message then says that the run diverged.
void Training::watch_divergence(const std::function<void()>& work) const {
  try {
    work();
  } catch (const c10::Error&) {
    const std::vector<Tensor> weights = model_->parameters();
    if (std::all_of(weights.begin(), weights.end(), [](const Tensor& w) { return w.isfinite().all().item<bool>(); }))
      throw;
    throw diverged();
  }
}

Error Training::diverged() const {
  return {ExitCode::kDiverged,
          fmt::format(
              "the loss is not finite at step {}; try a lower --learning-rate or --clip. The last checkpoint is kept",
              step_)};
}

Json Training::finish() const {
  SequenceModel best = best_model();
  EvaluateOptions options = evaluate_options();
  options.answers = true;
  options.labels = data_.labels;
  const Evaluation test = evaluate(best, card_, data_.test, options);
  Json tested = test.to_json();
  if (!test.answers.empty()) tested.update(describe_answers(test.answers, data_, data_.test));
  return {{"task", data_.task},
          {"attention", config_.model.attention},
          {"seed", c_.seed},
          {"steps", step_},
          {"stopped_early", stopped_early_},
          {"parameters", model_->parameter_count()},
          {"score_ratio", score_ratio(card_, data_)},
          {"train_seconds", train_seconds_},
          {"step_milliseconds", 1e3 * train_seconds_ / static_cast<double>(std::max<int64_t>(step_, 1))},
          {"best_step", best_step_},
          {"valid", best_.to_json()},
          {"test", std::move(tested)}};
}

}  // namespace strata
