// ListOps as a task: generated once for given options and kept in the cache, or read from files.
#include "data/cache.h"
#include "data/generate.h"
#include "data/listops.h"
#include "data/task.h"
#include "util/error.h"

namespace strata {

fs::path listops_folder(const DataConfig& c) {
  const int64_t length = c.length > 0 ? c.length : find_task("listops").length;
  return cache_folder() / "listops" /
         fmt::format("len{}-{}_depth{}_args{}_rows{}-{}-{}_seed{}", c.min_length, length, c.max_depth, c.max_args,
                     rows_or(c.train_rows, kTrainRows), rows_or(c.valid_rows, kHeldOutRows),
                     rows_or(c.test_rows, kHeldOutRows), c.data_seed);
}

fs::path make_listops_set(const DataConfig& given, bool again) {
  DataConfig c = given;
  if (c.length == 0) c.length = find_task("listops").length;
  fs::path folder = listops_folder(c);
  if (!again) {
    const SetState state = check_set(folder, /*read_files=*/false);
    if (state.present && state.problems.empty()) return folder;
  }
  const int64_t splits[] = {rows_or(c.train_rows, kTrainRows), rows_or(c.valid_rows, kHeldOutRows),
                            rows_or(c.test_rows, kHeldOutRows)};
  ListopsOptions options;
  options.rows = splits[0] + splits[1] + splits[2];
  options.min_length = c.min_length;
  options.max_length = c.length;
  options.max_depth = c.max_depth;
  options.max_args = c.max_args;
  options.seed = static_cast<uint64_t>(c.data_seed);
  const std::string lines = make_listops(options);
  Files files;
  size_t at = 0;
  const char* const names[] = {"train.tsv", "valid.tsv", "test.tsv"};
  for (int split = 0; split < 3; ++split) {
    size_t end = at;
    for (int64_t row = 0; row < splits[split]; ++row) end = lines.find('\n', end) + 1;
    files.emplace_back(names[split], lines.substr(at, end - at));
    at = end;
  }
  const Json origin = {{"task", "listops"},        {"min_length", c.min_length}, {"length", c.length},
                       {"max_depth", c.max_depth}, {"max_args", c.max_args},     {"data_seed", c.data_seed},
                       {"rows", options.rows}};
  make_folder(folder.parent_path());
  write_set(folder, origin, files);
  return folder;
}

TaskData load_listops(const DataConfig& config) {
  const fs::path given = config.data.empty() ? make_listops_set(config, /*again=*/false) : fs::path(config.data);
  TaskData data;
  data.vocabulary = kListopsVocabulary;
  for (int digit = 0; digit < 10; ++digit) data.labels.push_back(std::to_string(digit));
  if (!fs::is_directory(given)) {
    data.files = {given};
    data.train = read_listops(read_file(given), given.filename().string(), config.length);
    cut_test_split(data, static_cast<uint64_t>(config.data_seed));
    return data;
  }
  const std::pair<const char*, Dataset*> splits[] = {
      {"train", &data.train}, {"valid", &data.valid}, {"test", &data.test}};
  for (const auto& [name, split] : splits) {
    const fs::path path = find_split(given, name, {".tsv"});
    if (path.empty() && split != &data.valid) {
      throw data_error("{}: expected {}.tsv in this folder, found none", given.string(), name);
    }
    if (path.empty()) continue;
    *split = read_listops(read_file(path), path.filename().string(), config.length);
    data.files.push_back(path);
  }
  return data;
}

}  // namespace strata
