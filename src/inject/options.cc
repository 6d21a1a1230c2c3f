// The options of `strata inject` and `strata embed`. Those of an injection are declared once for both.
#include "inject/embed.h"
#include "inject/experiment.h"
#include "util/common_options.h"

namespace strata {
namespace {

void declare_length(OptionTable& table, int64_t& length) {
  table.add("length", &length,
            {.help = "Largest number of tokens of a text; 0: as many as the model reads", .min = 0, .max = kMostCount});
}

void declare_special(OptionTable& table, bool& approximate) {
  table.add("approximate_special", &approximate,
            {.help = "Special tokens attend by the tree as well; otherwise to all tokens, as in the original"});
}

void declare_batch(OptionTable& table, int64_t& batch) {
  table.add("batch", &batch, {.help = "Texts per batch", .min = 1, .max = 65536});
}

}  // namespace

void declare(OptionTable& table, InjectOptions& o) {
  table.begin_group("Data");
  table.add("test", &o.test, {.help = "Labelled texts to measure on: CSV, TSV or JSON lines", .type = "FILE"});
  table.add(
      "train", &o.train,
      {.help = "Labelled texts to fit a linear head on; without them the model's own head is used", .type = "FILE"});
  table.add(
      "texts", &o.texts,
      {.help = "Unlabelled texts, one per line, to measure KL gaps on; those of --train if not given", .type = "FILE"});
  table.add("label_column", &o.label_column, {.help = "Column of the label: a name, or a number from 1"});
  table.add("text_column", &o.text_column, {.help = "Column of the text: a name, or a number from 1"});
  declare_length(table, o.length);
  table.add("train_rows", &o.train_rows, {.help = "Training rows, chosen by the seed", .min = 1, .max = kMostCount});
  table.add("test_rows", &o.test_rows, {.help = "Test rows, chosen by the seed", .min = 1, .max = kMostCount});
  table.add("text_rows", &o.text_rows, {.help = "Unlabelled texts", .min = 1, .max = kMostCount});
  table.add("seed", &o.seed, {.help = "Seed of the rows", .min = 0, .max = kMostSeed});
  table.begin_group("Injection");
  table.add("layers", &o.layers,
            {.help = "Layers that attend by HSA: auto (by the KL gap), late (every second layer of the later half), or "
                     "numbers from 0: 3,5"});
  table.add("tree", &o.tree,
            {.help = "Tree of a text; best: the tree closest to softmax within the budget",
             .choices = {"best", "sentences", "balanced", "windows"}});
  table.add("branching", &o.branching,
            {.help = "Largest number of children of a family (not used by best)", .min = 2, .max = 64});
  table.add("cut", &o.cut, {.help = "auto: share of the attention of all layers to save", .min = 0, .max = 1});
  table.add("budget", &o.budget,
            {.help = "Largest cost of an injected layer, relative to flat attention", .min = 0, .max = 1});
  declare_special(table, o.approximate_special);
  table.begin_group("Measuring");
  declare_batch(table, o.batch);
  table.add("curve", &o.curve, {.help = "Measure the score with one injected layer after the other"});
  table.add("times", &o.times, {.help = "Measure time and memory"});
  table.add("lengths", &o.lengths, {.help = "Numbers of tokens to measure time at", .min = 1, .max = 1 << 20});
  declare_threads(table, o.threads);
  declare_check_digest(table, o.check_digest);
}

void declare(OptionTable& table, EmbedOptions& o) {
  table.begin_group("Injection");
  table.add("layers", &o.layers,
            {.help = "Layers that attend by HSA on a tree of the text: none, late, or numbers from 0: 3,5"});
  table.add("tree", &o.tree, {.help = "Tree of the text", .choices = {"sentences", "balanced", "windows"}});
  table.add("branching", &o.branching, {.help = "Largest number of children of a family", .min = 2, .max = 64});
  declare_special(table, o.approximate_special);
  table.begin_group("Embedding");
  declare_length(table, o.length);
  table.add("normalize", &o.normalize, {.help = "Scale embeddings to length 1"});
  declare_batch(table, o.batch);
  declare_threads(table, o.threads);
  declare_check_digest(table, o.check_digest);
}

}  // namespace strata
