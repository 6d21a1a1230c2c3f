#include "train/trainer.h"

#include <torch/torch.h>

#include <chrono>
#include <cmath>

#include "data/loader.h"
#include "data/task.h"
#include "torch/compat.h"
#include "train/adamw.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/metrics.h"
#include "train/record.h"
#include "train/schedule.h"
#include "train/setup.h"
#include "train/system.h"
#include "train/track.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/progress.h"
#include "util/random.h"

namespace strata {
namespace {

using torch::Tensor;
using Seconds = std::chrono::duration<double>;

class Trainer {
 public:
  Trainer(const RunConfig& config, const RunFolder& folder, bool quiet)
      : config_(config),
        c_(config.train),
        folder_(folder),
        data_(load_task(config.data)),
        card_(make_card(config, data_)),
        device_(device_of(c_)),
        progress_(quiet) {
    if (data_.valid.rows.empty()) throw data_error("no validation rows; raise --valid-share or --valid-rows");
    torch::manual_seed(mix(c_.seed));
    model_ = make_model(card_);
    model_->to(device_);
    optimizer_ = std::make_unique<AdamW>(*model_, c_.weight_decay);
    const int64_t batches = Loader::batches(data_.train, c_.batch);
    steps_per_epoch_ = (batches + c_.accumulate - 1) / c_.accumulate;
    steps_ = c_.epochs * steps_per_epoch_;
    if (c_.steps > 0) steps_ = std::min(steps_, c_.steps);
    eval_every_ = c_.eval_every > 0 ? c_.eval_every : steps_per_epoch_;
    for (const std::string& problem : describe_problems(data_)) progress_.note("warning: " + problem);
  }

  const std::vector<fs::path>& data_files() const { return data_.files; }

  // Trains to the end and returns the result, with the test scores of the best model.
  Json run(bool resume) {
    if (resume && fs::exists(folder_.last())) restore(load_training(folder_.last(), model_, *optimizer_, card_));
    metrics_ = std::make_unique<MetricsLog>(folder_.root, step_ == 0 ? -1 : step_, c_.tensorboard);
    clock_ = Clock(step_);
    last_save_ = std::chrono::steady_clock::now();
    if (step_ == 0) track();
    while (step_ < steps_ && !stopped_early_) run_epoch(step_ / steps_per_epoch_);
    save();
    progress_.finish();
    return finish();
  }

 private:
  // A pass over the rows, from wherever this step lies in it.
  void run_epoch(int64_t epoch) {
    LoaderOptions options;
    options.batch = c_.batch;
    options.goal = data_.goal;
    options.trees = tree_maker(card_);
    options.order = permutation(data_.train.size(), mix(mix(c_.seed) + static_cast<uint64_t>(epoch)));
    // Downwards, so that no epoch draws what an order was drawn from.
    options.augment = {c_.jitter, c_.hide, mix(mix(c_.seed) - 1 - static_cast<uint64_t>(epoch))};
    options.first_batch = step_ % steps_per_epoch_ * c_.accumulate;
    Loader loader(data_.train, std::move(options));
    const int64_t end = std::min((epoch + 1) * steps_per_epoch_, steps_);
    while (step_ < end && !stopped_early_) {
      const auto start = std::chrono::steady_clock::now();
      watch_divergence([&] { train_step(loader); });
      const auto now = std::chrono::steady_clock::now();
      train_seconds_ += Seconds(now - start).count();
      ++step_;
      if (step_ % c_.log_every == 0 || step_ == steps_) log_window();
      show();
      watch_divergence([&] {
        if (step_ % steps_per_epoch_ == 0 || step_ == steps_) track();
        if (step_ % eval_every_ == 0 || step_ == steps_) evaluate_valid();
      });
      if (interrupted()) {
        save();
        progress_.finish();
        throw Error(ExitCode::kInterrupted,
                    fmt::format("interrupted at step {} of {}; saved, go on with: strata train --resume {}", step_,
                                steps_, folder_.root.string()));
      }
      if (Seconds(now - last_save_).count() >= static_cast<double>(c_.save_seconds)) save();
    }
  }

  // One step of AdamW on the mean gradient of up to `accumulate` batches.
  void train_step(Loader& loader) {
    // Dropout draws from a seed of its own at every step, so that a resumed run draws the same.
    torch::manual_seed(mix(mix(c_.seed) ^ static_cast<uint64_t>(step_)));
    model_->train();
    optimizer_->zero_grad();
    std::vector<Batch> batches;
    Batch batch;
    while (static_cast<int64_t>(batches.size()) < c_.accumulate && loader.next(batch))
      batches.push_back(std::move(batch));
    for (const Batch& part : batches) {
      Loss loss;
      {
        const AutocastGuard autocast(c_.precision == "bf16", device_.type());
        loss = loss_of(model_->forward(to_input(part, device_)), part, c_.label_smoothing);
      }
      (loss.mean / static_cast<double>(batches.size())).backward();
      window_loss_ += loss.mean.detach().to(torch::kDouble) * loss.counted;
      window_correct_ += loss.correct;
      window_counted_ += loss.counted;
      window_tokens_ += part.real_tokens;
    }
    if (c_.clip > 0) optimizer_->clip(c_.clip);
    optimizer_->step(learning_rate_at(c_.schedule, c_.learning_rate, c_.warmup, step_, steps_));
  }

  void log_window() {
    const double counted = static_cast<double>(std::max<int64_t>(window_counted_, 1));
    shown_loss_ = window_loss_.item<double>() / counted;
    shown_accuracy_ = window_correct_.item<double>() / counted;
    if (!std::isfinite(shown_loss_)) throw diverged();
    metrics_->add({{"kind", "train"},
                   {"step", step_},
                   {"steps", steps_},
                   {"epoch", static_cast<double>(step_) / static_cast<double>(steps_per_epoch_)},
                   {"loss", shown_loss_},
                   {"accuracy", shown_accuracy_},
                   {"learning_rate", learning_rate_at(c_.schedule, c_.learning_rate, c_.warmup, step_ - 1, steps_)},
                   {"tokens_per_second", tokens_per_second()},
                   {"train_seconds", train_seconds_}});
    window_loss_.zero_();
    window_correct_.zero_();
    window_counted_ = window_tokens_ = 0;
    window_start_seconds_ = train_seconds_;
  }

  // The operators refuse weights that are not finite; say how it came to that.
  void watch_divergence(const std::function<void()>& work) const {
    try {
      work();
    } catch (const c10::Error&) {
      const std::vector<Tensor> weights = model_->parameters();
      if (std::all_of(weights.begin(), weights.end(), [](const Tensor& w) { return w.isfinite().all().item<bool>(); }))
        throw;
      throw diverged();
    }
  }

  Error diverged() const {
    return {ExitCode::kFailure,
            fmt::format(
                "the loss is not finite at step {}; try a lower --learning-rate or --clip. The last checkpoint is kept",
                step_)};
  }

  double tokens_per_second() const {
    return static_cast<double>(window_tokens_) / std::max(1e-9, train_seconds_ - window_start_seconds_);
  }

  void show() {
    if (window_counted_ > 0 && step_ % 10 == 0) {
      shown_loss_ = window_loss_.item<double>() / static_cast<double>(window_counted_);
      shown_accuracy_ = window_correct_.item<double>() / static_cast<double>(window_counted_);
      shown_rate_ = tokens_per_second();
    }
    progress_.show(fmt::format("{} step {}/{}  loss {:.3f}  accuracy {:.1f}%  {:.0f} tokens/s  {} left",
                               bar(static_cast<double>(step_) / static_cast<double>(steps_)), step_, steps_,
                               shown_loss_, 100 * shown_accuracy_, shown_rate_, clock_.left(step_, steps_)));
  }

  // Before the first step and after every epoch.
  void track() {
    add_metrics(track_level_weights(model_));
    if (c_.every_epoch) add_metrics(track_scores(model_, card_, data_.valid));
  }

  void add_metrics(Json line) {
    if (line.is_null()) return;
    line["step"] = step_;
    line["epoch"] = static_cast<double>(step_) / static_cast<double>(steps_per_epoch_);
    metrics_->add(line);
  }

  // Better: more rows right, or, of a language model, a lower loss.
  bool better(const Evaluation& now) const {
    if (best_step_ < 0) return true;
    if (data_.goal == Goal::kNextToken) return now.loss < best_.loss;
    return now.accuracy > best_.accuracy || (now.accuracy == best_.accuracy && now.loss < best_.loss);
  }

  void evaluate_valid() {
    const Evaluation now = evaluate(model_, card_, data_.valid, evaluate_options());
    Json line = {{"kind", "valid"}};
    line.update(now.to_json());
    add_metrics(line);
    progress_.note(fmt::format("step {}/{}: validation loss {:.4f}, accuracy {:.2f}%", step_, steps_, now.loss,
                               100 * now.accuracy));
    if (better(now)) {
      best_ = now;
      best_step_ = step_;
      stale_ = 0;
      save_model(folder_.best(), model_, card_);
    } else if (++stale_ == c_.patience) {  // patience 0 is never reached
      stopped_early_ = true;
      progress_.note(fmt::format("no better for {} evaluations: stopping", stale_));
    }
    save();
  }

  EvaluateOptions evaluate_options() const { return {2 * c_.batch, c_.precision == "bf16"}; }

  void save() {
    save_training(folder_.last(), *optimizer_, card_,
                  {{"step", step_},
                   {"train_seconds", train_seconds_},
                   {"window",
                    {window_loss_.item<double>(), window_correct_.item<double>(), window_counted_, window_tokens_,
                     window_start_seconds_}},
                   {"best", best_.to_json()},
                   {"best_step", best_step_},
                   {"stale", stale_},
                   {"stopped_early", stopped_early_}});
    last_save_ = std::chrono::steady_clock::now();
  }

  void restore(const Json& state) {
    step_ = state.at("step");
    train_seconds_ = state.at("train_seconds");
    const Json& window = state.at("window");
    window_loss_.fill_(window.at(0).get<double>());
    window_correct_.fill_(window.at(1).get<double>());
    window_counted_ = window.at(2);
    window_tokens_ = window.at(3);
    window_start_seconds_ = window.at(4);
    best_ = {state.at("best").at("loss"), state.at("best").at("accuracy"), state.at("best").at("rows")};
    best_step_ = state.at("best_step");
    stale_ = state.at("stale");
    stopped_early_ = state.at("stopped_early");
    progress_.note(fmt::format("going on at step {} of {}", step_, steps_));
  }

  Json finish() const {
    LoadedModel best = load_model(folder_.best());
    best.model->to(device_);
    const Evaluation test = evaluate(best.model, card_, data_.test, evaluate_options());
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
            {"test", test.to_json()}};
  }

  const RunConfig config_;
  const TrainConfig& c_ = config_.train;
  const RunFolder folder_;
  const TaskData data_;
  const ModelCard card_;
  const torch::Device device_;
  Progress progress_;
  SequenceModel model_{nullptr};
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<MetricsLog> metrics_;
  Clock clock_{0};
  std::chrono::steady_clock::time_point last_save_;

  int64_t steps_ = 0, steps_per_epoch_ = 0, eval_every_ = 0;
  // What a checkpoint holds beside the weights.
  int64_t step_ = 0, best_step_ = -1, stale_ = 0;
  bool stopped_early_ = false;
  double train_seconds_ = 0;
  Evaluation best_;
  // Since the last line of metrics.
  Tensor window_loss_ = torch::zeros({}, torch::TensorOptions(torch::kDouble).device(device_)),
         window_correct_ = window_loss_.clone();
  int64_t window_counted_ = 0, window_tokens_ = 0;
  double window_start_seconds_ = 0;
  double shown_loss_ = 0, shown_accuracy_ = 0, shown_rate_ = 0;
};

Json read_run(const RunFolder& folder) {
  if (!fs::exists(folder.run())) {
    throw output_error("{}: expected the folder of a run, with run.json in it", folder.root.string());
  }
  Json run = Json::parse(read_file(folder.run()), nullptr, false);
  if (!run.is_object() || !run.contains("options")) throw output_error("{}: is damaged", folder.run().string());
  return run;
}

}  // namespace

Json train(const RunConfig& config, const RunFolder& folder, bool resume, bool quiet) {
  make_folder(folder.root);
  const FolderLock lock(folder.root);
  RunConfig copy = config;
  OptionTable table;
  declare(table, copy);
  const bool started = fs::exists(folder.run());
  if (started && !resume) {
    throw output_error("{}: holds a run already; go on with it by --resume {}, or choose another folder",
                       folder.root.string(), folder.root.string());
  }
  if (fs::exists(folder.result())) return Json::parse(read_file(folder.result()));
  set_threads(config.train.threads);
  Trainer trainer(config, folder, quiet);
  // Only now: a run that could not even start leaves the folder free.
  Json record = started ? read_run(folder) : Json();
  if (!record.contains("versions")) {  // `strata compare` leaves the options alone
    record = start_record("train", table.record(), config.train.device, trainer.data_files());
  } else {
    record["resumed"].push_back(
        {{"at", utc_now()}, {"versions", versions()}, {"machine", machine(config.train.device)}});
  }
  write_json(folder.run(), record);
  Json result = trainer.run(resume);
  write_json(folder.run(), finish_record(record));
  write_json(folder.result(), result);
  return result;
}

RunConfig read_run_config(const RunFolder& folder) {
  RunConfig config;
  OptionTable table;
  declare(table, config);
  table.restore(read_run(folder)["options"], folder.run().string());
  return config;
}

}  // namespace strata
