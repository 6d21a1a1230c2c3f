// Any text, for a model that predicts the next byte: consecutive windows, each with one more byte as the last target.
#include "data/task.h"
#include "util/error.h"

namespace strata {
namespace {

Dataset windows(std::string_view text, int64_t length) {
  Dataset data;
  data.tokens = byte_tokens(text);
  const auto size = static_cast<int64_t>(data.tokens.size());
  for (int64_t at = 0; at + 1 < size; at += length) {
    data.rows.push_back({at, static_cast<int32_t>(std::min(length + 1, size - at)), 0});
  }
  return data;
}

}  // namespace

TaskData load_text(const DataConfig& config) {
  if (config.data.empty()) throw usage_error("data: the task text needs a file of your own; pass it with --data");
  const fs::path given = config.data;
  TaskData data;
  data.vocabulary = kByteVocabulary;
  if (fs::is_directory(given)) {
    const std::pair<const char*, Dataset*> splits[] = {
        {"train", &data.train}, {"valid", &data.valid}, {"test", &data.test}};
    for (const auto& [name, split] : splits) {
      const fs::path path = find_split(given, name, {".txt"});
      if (path.empty()) throw data_error("{}: expected {}.txt in this folder, found none", given.string(), name);
      *split = windows(read_file(path), config.length);
      data.files.push_back(path);
    }
    return data;
  }
  data.files = {given};
  const std::string text = read_file(given);  // nine tenths for training, then a twentieth each for validation and test
  const std::string_view all = text;
  const size_t learn = all.size() / 10 * 9, check = all.size() / 20;
  data.train = windows(all.substr(0, learn), config.length);
  data.valid = windows(all.substr(learn, check), config.length);
  data.test = windows(all.substr(learn + check), config.length);
  return data;
}

}  // namespace strata
