#include "train/config.h"

#include <algorithm>

#include "util/common_options.h"

namespace strata {

int64_t steps_per_epoch(const TrainConfig& config, int64_t rows) {
  const int64_t batches = (rows + config.batch - 1) / config.batch;
  return (batches + config.accumulate - 1) / config.accumulate;
}
int64_t steps_of(const TrainConfig& config, int64_t rows) {
  const int64_t all = config.epochs * steps_per_epoch(config, rows);
  return config.steps > 0 ? std::min(all, config.steps) : all;
}

void declare(OptionTable& table, TrainConfig& c) {
  table.begin_group("Training");
  table.add("seed", &c.seed,
            {.help = "Seed of the weights, the order of the rows and dropout", .min = 0, .max = kMostSeed});
  table.add("epochs", &c.epochs, {.help = "Passes over the training rows", .min = 1, .max = kMostCount});
  table.add("steps", &c.steps,
            {.help = "Stop after this many steps; 0: at the end of the last epoch", .min = 0, .max = kMostCount});
  table.add("batch", &c.batch, {.help = "Rows per batch", .min = 1, .max = 1 << 20});
  table.add("accumulate", &c.accumulate,
            {.help = "Batches per step; their gradients are averaged", .min = 1, .max = 1 << 20});
  table.add("learning_rate", &c.learning_rate, {.help = "Largest learning rate of AdamW", .min = 0, .max = 10});
  table.add("schedule", &c.schedule,
            {.help = "Schedule of the learning rate after warm-up", .choices = {"one-cycle", "cosine", "constant"}});
  table.add("warmup", &c.warmup, {.help = "Share of the steps in which the learning rate rises", .min = 0, .max = 1});
  table.add("weight_decay", &c.weight_decay, {.help = "AdamW's weight decay, on matrices", .min = 0, .max = 10});
  table.add("clip", &c.clip, {.help = "Largest norm of the gradient; 0: no limit", .min = 0, .max = 1e6});
  table.add("label_smoothing", &c.label_smoothing,
            {.help = "Share of the target spread over all classes", .min = 0, .max = 0.99});
  table.add("hide", &c.hide,
            {.help = "Share of the tokens hidden in each training row, drawn anew every epoch", .min = 0, .max = 0.9});
  table.add("jitter", &c.jitter,
            {.help = "Mirror half of the training images, and move all by up to this many pixels",
             .min = 0,
             .max = 16,
             .task = "cifar10"});
  table.add("precision", &c.precision,
            {.help = "Precision; bf16: autocast of matrix products; float64: for checks",
             .choices = {"float32", "bf16", "float64"}});
  table.add("eval_every", &c.eval_every,
            {.help = "Steps between evaluations; 0: once per epoch", .min = 0, .max = kMostCount});
  table.add("patience", &c.patience,
            {.help = "Stop after this many evaluations without improvement; 0: never", .min = 0, .max = kMostCount});
  table.begin_group("Running");
  table.add("device", &c.device, {.help = "Device to compute on", .choices = {"cpu", "cuda"}});
  table.add("graphs", &c.graphs,
            {.help = "On a GPU, record steps of shapes that come back as CUDA graphs; the results are the same",
             .choices = {"auto", "off"}});
  declare_threads(table, c.threads);
  table.add("log_every", &c.log_every, {.help = "Steps between lines of metrics.jsonl", .min = 1, .max = kMostCount});
  table.add("every_epoch", &c.every_epoch,
            {.help = "After every epoch, test whether the scores of each level are Gaussian (flat, HKT)"});
  table.add("save_seconds", &c.save_seconds, {.help = "Seconds between checkpoints", .min = 0, .max = kMostCount});
  table.add("tensorboard", &c.tensorboard, {.help = "Also write TensorBoard event files"});
}

void declare(OptionTable& table, RunConfig& config) {
  declare(table, config.data);
  declare(table, config.model);
  declare(table, config.train);
}

}  // namespace strata
