// All options of a run: data, model, training.
#pragma once

#include <string>

#include "data/config.h"
#include "model/model_config.h"

namespace strata {

struct TrainConfig {
  int64_t seed = 1;
  int64_t epochs = 2, steps = 0, batch = 64, accumulate = 1, jitter = 0;
  double learning_rate = 2e-3, weight_decay = 0.01, warmup = 0.1, clip = 1.0, label_smoothing = 0.0, hide = 0.0;
  std::string schedule = "one-cycle", precision = "float32", device = "cpu", graphs = "auto";
  int64_t eval_every = 0, patience = 0, log_every = 50, save_seconds = 60, threads = 0;
  bool tensorboard = false, every_epoch = false;
};

struct RunConfig {
  DataConfig data;
  ModelConfig model;
  TrainConfig train;
};

// Steps of an epoch over so many rows, and of the whole run.
int64_t steps_per_epoch(const TrainConfig& config, int64_t rows);
int64_t steps_of(const TrainConfig& config, int64_t rows);

void declare(OptionTable& table, TrainConfig& config);
void declare(OptionTable& table, RunConfig& config);

}  // namespace strata
