#include "data/config.h"

#include "data/task.h"
#include "util/file.h"

namespace strata {

void declare(OptionTable& table, DataConfig& c) {
  table.begin_group("Data");
  table.add("task", &c.task, {.help = "What to learn (strata data list)", .choices = task_names()});
  table.add("data", &c.data, {.help = "File or folder with the data; the task's own place in the cache if empty"});
  table.add("length", &c.length,
            {.help = "Tokens per row at most (cifar10: 1024, 256 or 64 pixels); 0: the task's default",
             .min = 0,
             .max = 1 << 20});
  table.add("train_rows", &c.train_rows,
            {.help = "Training rows; 0: all (listops, recall: 20000)", .min = 0, .max = kMostCount});
  table.add("valid_rows", &c.valid_rows,
            {.help = "Validation rows; 0: all (listops, recall: 2000)", .min = 0, .max = kMostCount});
  table.add("test_rows", &c.test_rows,
            {.help = "Test rows; 0: all (listops, recall: 2000)", .min = 0, .max = kMostCount});
  table.add("valid_share", &c.valid_share,
            {.help = "Share of the training rows kept for validation where the data has no such split",
             .min = 0,
             .max = 0.9});
  table.add("data_seed", &c.data_seed,
            {.help = "Seed of generated data and of the validation split", .min = 0, .max = kMostSeed});
  table.add("min_length", &c.min_length, {.help = "Shortest expression", .min = 1, .max = 1 << 20, .task = "listops"});
  table.add("max_depth", &c.max_depth, {.help = "Deepest nesting", .min = 1, .max = 100, .task = "listops"});
  table.add("max_args", &c.max_args,
            {.help = "Most arguments of an operator", .min = 2, .max = 100, .task = "listops"});
  table.add("image_side", &c.image_side,
            {.help = "Pixels on a side of an image: 32, 16 or 8", .min = 8, .max = 32, .task = "captions"});
  table.add("pairs", &c.pairs, {.help = "Keys with a digit in a row", .min = 1, .max = 26, .task = "recall"});
  table.add(
      "questions", &c.questions,
      {.help = "Keys that a training row asks for; other rows ask for one", .min = 1, .max = 26, .task = "recall"});
  table.add("label_column", &c.label_column,
            {.help = "Column of the label: a name, or a number from 1", .task = "table"});
  table.add("text_column", &c.text_column, {.help = "Column of the text: a name, or a number from 1", .task = "table"});
  table.add("tokens", &c.tokens,
            {.help = "What texts are read as (imdb, table)", .choices = {"bytes", "words", "pieces"}});
  table.add(
      "words", &c.words,
      {.help = "Vocabulary: the commonest words of the training rows, with --tokens words", .min = 1, .max = 60000});
  table.add("embeddings", &c.embeddings,
            {.help = "Hugging Face folder of a BERT or MiniLM encoder, with --tokens pieces: its word pieces are the "
                     "tokens, and its word embeddings, which stay as they are, go through a trained linear map"});
}

DataConfig with_absolute_paths(DataConfig config) {
  for (std::string* path : {&config.data, &config.embeddings}) {
    if (!path->empty()) *path = fs::absolute(*path).lexically_normal().string();
  }
  return config;
}

}  // namespace strata
