#include "train/config.h"

namespace strata {

void declare(OptionTable& table, TrainConfig& c) {
  table.begin_group("Training");
  table.add("seed", &c.seed, {.help = "Seed of the weights, the order of the rows and dropout", .min = 0});
  table.add("epochs", &c.epochs, {.help = "Passes over the training rows", .min = 1});
  table.add("steps", &c.steps, {.help = "Stop after so many steps; 0: at the end of the last epoch", .min = 0});
  table.add("batch", &c.batch, {.help = "Rows a batch", .min = 1, .max = 1 << 20});
  table.add("accumulate", &c.accumulate, {.help = "Batches whose gradients make one step", .min = 1, .max = 1 << 20});
  table.add("learning_rate", &c.learning_rate, {.help = "Largest learning rate of AdamW", .min = 0, .max = 10});
  table.add("schedule", &c.schedule,
            {.help = "Course of the learning rate after warm-up", .choices = {"one-cycle", "cosine", "constant"}});
  table.add("warmup", &c.warmup, {.help = "Share of the steps in which the learning rate rises", .min = 0, .max = 1});
  table.add("weight_decay", &c.weight_decay, {.help = "AdamW's weight decay, on matrices", .min = 0, .max = 10});
  table.add("clip", &c.clip, {.help = "Largest norm of the gradient; 0: any", .min = 0});
  table.add("label_smoothing", &c.label_smoothing,
            {.help = "Share of the target spread over all classes", .min = 0, .max = 0.99});
  table.add("hide", &c.hide,
            {.help = "Share of the tokens hidden in each training row, others every epoch", .min = 0, .max = 0.9});
  table.add("jitter", &c.jitter,
            {.help = "Training images are mirrored half of the time and moved by up to so many pixels",
             .min = 0,
             .max = 16,
             .task = "cifar10"});
  table.add("precision", &c.precision, {.help = "bf16: autocast matrix products", .choices = {"float32", "bf16"}});
  table.add("eval_every", &c.eval_every, {.help = "Steps between evaluations; 0: once an epoch", .min = 0});
  table.add("patience", &c.patience,
            {.help = "Stop after so many evaluations without a better one; 0: never", .min = 0});
  table.begin_group("Running");
  table.add("device", &c.device, {.help = "Where to compute", .choices = {"cpu", "cuda"}});
  table.add("threads", &c.threads, {.help = "CPU threads; 0: all cores", .min = 0, .max = 4096});
  table.add("log_every", &c.log_every, {.help = "Steps between lines of metrics.jsonl", .min = 1});
  table.add("every_epoch", &c.every_epoch,
            {.help = "After every epoch, test whether the scores of each level are Gaussian (flat, HKT)"});
  table.add("save_seconds", &c.save_seconds, {.help = "Seconds between checkpoints", .min = 0});
  table.add("tensorboard", &c.tensorboard, {.help = "Write TensorBoard event files too"});
}

void declare(OptionTable& table, RunConfig& config) {
  declare(table, config.data);
  declare(table, config.model);
  declare(table, config.train);
}

}  // namespace strata
