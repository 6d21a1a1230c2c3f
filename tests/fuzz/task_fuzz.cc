// libFuzzer target: the files of a task are refused, or become splits that hold together: rows inside the tokens,
// tokens of the vocabulary, labels that have a name, no row longer than the length. The first byte selects the task,
// the second what is asked of it.
#include "data/captions.h"
#include "data/task.h"
#include "refusal.h"

namespace {

using strata::Dataset;
using strata::TaskData;
using strata::fuzz::require;

void check(const Dataset& split, const TaskData& data, int64_t length) {
  const auto tokens = static_cast<int64_t>(split.tokens.size());
  const auto labels = static_cast<int64_t>(data.labels.size());
  for (const Dataset::Row& row : split.rows) {
    require(row.begin >= 0 && row.length > 0 && row.begin + row.length <= tokens, "rows inside the tokens");
    require(row.length <= length, "no row longer than the length");
    require(data.goal == strata::Goal::kNextToken || (row.label >= 0 && row.label < labels), "labels with a name");
  }
  for (const strata::Token token : split.tokens) require(token < data.vocabulary, "tokens of the vocabulary");
  require(split.bad >= static_cast<int64_t>(split.problems.size()), "every problem is counted");
  for (const std::string& problem : split.problems) strata::fuzz::check_shown(problem);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  if (size < 2) return 0;
  static const fs::path folder = fuzz::memory_folder("task");
  static const std::vector<std::string> tables = {"train.csv", "valid.csv", "test.csv",    "train.tsv",
                                                  "valid.tsv", "test.tsv",  "train.txt",   "valid.txt",
                                                  "test.txt",  "train.bin", "train.jsonl", "test.bin"};
  const fuzz::Files input({reinterpret_cast<const char*>(data + 2), size - 2});
  fuzz::write_files(input, folder, tables);
  const Task& task = tasks()[data[0] % tasks().size()];
  const uint8_t asked = data[1];
  DataConfig config;
  config.task = task.name;
  config.data = folder.string();
  config.length = (asked & 1) == 0 ? 64 : config.task == "cifar10" ? 1024 : 8;
  if (config.task == "captions") {
    config.image_side = (asked & 1) != 0 ? 8 : 16;
    config.length = captions_length(config.image_side);
  }
  if ((asked & 2) != 0) config.tokens = "words";
  if ((asked & 4) != 0) config.train_rows = config.test_rows = 2;
  config.words = 5;
  const bool whole = (asked & 8) != 0;
  TaskData read;
  if (!fuzz::accepts([&] { read = load_task(config, {}, whole); })) return 0;
  // A window of a language model ends with the target of its last token.
  const int64_t length = config.length + (task.goal == Goal::kNextToken ? 1 : 0);
  for (const Dataset* split : {&read.train, &read.valid, &read.test}) check(*split, read, length);
  require(!read.test.rows.empty() && (whole || !read.train.rows.empty()), "rows to learn and to test");
  for (const std::string& problem : describe_problems(read)) fuzz::check_shown(problem);
  return 0;
}
