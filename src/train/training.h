// The state of a run and its loop: steps, evaluations, metrics, checkpoints.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "data/dataset.h"
#include "data/loader.h"
#include "model/model_file.h"
#include "train/adamw.h"
#include "train/data_parallel.h"
#include "train/evaluate.h"
#include "train/metrics.h"
#include "train/run_state.h"
#include "train/train_step.h"
#include "train/trainer.h"
#include "train/window.h"
#include "util/error.h"
#include "util/progress.h"

namespace strata {

class Training {
 public:
  // group: this process is one of several; null: it works alone.
  Training(const RunConfig& config, const RunFolder& folder, bool quiet, EpochTracker tracker, Group* group = nullptr,
           bool shard_optimizer = false);

  const std::vector<fs::path>& data_files() const { return data_.files; }
  Json facts() const;  // what all processes of a run must have alike, besides the files of its data
  // Trains to the end and returns the result, with the test scores of the best model.
  Json run(bool resume);

 private:
  // ---- steps: training.cc
  void run_epoch(int64_t epoch);
  void run_step(Loader& loader);
  void watch_divergence(const std::function<void()>& work) const;
  Error diverged() const;
  Json finish() const;

  // ---- several processes: training_parallel.cc
  static torch::Device device_in(const Group* group, const TrainConfig& config);
  void join(Group& group, bool shard_optimizer);
  double element_size() const;
  void run_parallel_step(const std::vector<Batch>& batches, double learning_rate, uint64_t seed);
  void backward_in_parallel(const std::vector<Batch>& batches, uint64_t step_seed);
  void resume_in_parallel(bool resume);
  bool is_time_to_save() const;
  SequenceModel best_model() const;
  bool is_writer() const { return parallel_ == nullptr || parallel_->is_writer(); }

  // ---- evaluation, metrics, checkpoints: training_state.cc
  void read_window();
  void show();
  void log_window();
  void track();
  void add_metrics(Json line);
  bool is_better(const Evaluation& now) const;
  void evaluate_valid();
  void save();
  void restore(const RunState& state);
  EvaluateOptions evaluate_options() const {
    return {2 * c_.batch, c_.precision == "bf16", false, parallel_ == nullptr ? nullptr : &parallel_->group()};
  }

  const RunConfig config_;
  const TrainConfig& c_ = config_.train;
  const RunFolder folder_;
  const EpochTracker tracker_;
  const TaskData data_;
  const ModelCard card_;
  const torch::Device device_;
  Progress progress_;
  SequenceModel model_{nullptr};
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<TrainStep> train_step_;
  std::unique_ptr<DataParallel> parallel_;  // null: one process
  struct {
    bool stop = false, save = false;
  } agreed_;  // of all processes, after a step
  std::unique_ptr<MetricsLog> metrics_;
  Clock clock_{0};
  std::chrono::steady_clock::time_point last_save_;

  int64_t steps_ = 0, steps_per_epoch_ = 0, eval_every_ = 0;
  // A checkpoint holds these beside the weights.
  int64_t step_ = 0, best_step_ = -1, stale_ = 0;
  bool stopped_early_ = false;
  double train_seconds_ = 0;
  Evaluation best_;
  Window window_;

  static constexpr int64_t kShowEvery = 10;                      // steps
  double shown_loss_ = 0, shown_accuracy_ = 0, shown_rate_ = 0;  // in the line of progress
};

}  // namespace strata
