#include "inject/experiment.h"

namespace strata {

void declare(OptionTable& table, InjectOptions& o) {
  constexpr double kMost = 1 << 30;
  table.begin_group("Data");
  table.add("test", &o.test, {.help = "Labelled texts to measure on: CSV, TSV or JSON lines"});
  table.add("train", &o.train,
            {.help = "Labelled texts to fit a linear head on; without them the model's own head answers"});
  table.add("texts", &o.texts,
            {.help = "Unlabelled texts, one per line, to measure KL gaps on; those of --train if not given"});
  table.add("label_column", &o.label_column, {.help = "Column of the label: a name, or a number from 1"});
  table.add("text_column", &o.text_column, {.help = "Column of the text: a name, or a number from 1"});
  table.add("length", &o.length,
            {.help = "Tokens of a text at most; 0: as many as the model reads", .min = 0, .max = kMost});
  table.add("train_rows", &o.train_rows, {.help = "Training rows, chosen by the seed", .min = 1, .max = kMost});
  table.add("test_rows", &o.test_rows, {.help = "Test rows, chosen by the seed", .min = 1, .max = kMost});
  table.add("text_rows", &o.text_rows, {.help = "Unlabelled texts", .min = 1, .max = kMost});
  table.add("seed", &o.seed, {.help = "Seed of the rows", .min = 0});
  table.begin_group("Injection");
  table.add("layers", &o.layers,
            {.help = "Layers that attend by HSA: auto (by the KL gap), late (every second one of the later half), or "
                     "numbers from 0: 3,5"});
  table.add("tree", &o.tree,
            {.help = "Tree of a text; best: whichever is closest to softmax within the budget",
             .choices = {"best", "sentences", "balanced", "windows"}});
  table.add("branching", &o.branching, {.help = "Children of a family at most (not of best)", .min = 2, .max = 64});
  table.add("cut", &o.cut, {.help = "auto: share of the attention of all layers to save", .min = 0, .max = 1});
  table.add("budget", &o.budget,
            {.help = "What an injected layer may cost at most, over flat attention", .min = 0, .max = 1});
  table.add("approximate_special", &o.approximate_special,
            {.help = "Special tokens attend by the tree as well; otherwise to all tokens, as in the original"});
  table.begin_group("Measuring");
  table.add("batch", &o.batch, {.help = "Texts at a time", .min = 1, .max = 65536});
  table.add("curve", &o.curve, {.help = "One layer after the other, beside before and after"});
  table.add("times", &o.times, {.help = "Measure time and memory"});
  table.add("lengths", &o.lengths, {.help = "Tokens to measure time at", .min = 1, .max = 1 << 20});
  table.begin_group("Running");
  table.add("threads", &o.threads, {.help = "CPU threads; 0: all cores", .min = 0, .max = 4096});
}

}  // namespace strata
