#include "data_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "data/cache.h"
#include "data/generate.h"
#include "data/task.h"
#include "util/error.h"
#include "util/text.h"

namespace strata {
namespace {

Json describe_split(const Dataset& split, const std::vector<std::string>& labels) {
  std::vector<int64_t> lengths, counts(labels.size(), 0);
  for (const Dataset::Row& row : split.rows) {
    lengths.push_back(row.length);
    if (!labels.empty()) ++counts[row.label];
  }
  std::sort(lengths.begin(), lengths.end());
  auto quantile = [&](double share) {
    return lengths.empty() ? 0 : lengths[static_cast<size_t>(share * static_cast<double>(lengths.size() - 1))];
  };
  Json json = {{"rows", split.size()},
               {"unusable", split.bad},
               {"cut", split.cut},
               {"length", {{"min", quantile(0)}, {"median", quantile(0.5)}, {"max", quantile(1)}}}};
  for (size_t label = 0; label < labels.size(); ++label) json["labels"][labels[label]] = counts[label];
  json["problems"] = split.problems;
  return json;
}

}  // namespace

void check_data(DataConfig config, bool json_wanted) {
  const fs::path cached = config.task == "listops" ? listops_folder(config) : cache_folder() / set_of(config.task);
  if (config.data.empty()) {
    const SetState set = check_set(cached, /*read_files=*/true);
    if (set.present && !set.problems.empty()) {
      throw data_error("{}: {}; run strata data make or get with --again", cached.string(),
                       fmt::join(set.problems, "; "));
    }
  } else if (config.task == "listops" && config.length == 0) {
    config.length = std::numeric_limits<int32_t>::max();  // no row is too long
  }
  const TaskData data = load_task(config);
  Json json = {{"task", data.task}};
  const std::pair<const char*, const Dataset*> splits[] = {
      {"train", &data.train}, {"valid", &data.valid}, {"test", &data.test}};
  for (const auto& [name, split] : splits) json[name] = describe_split(*split, data.labels);
  if (json_wanted) {
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{:<6} {:>8} {:>9} {:>8}   {}\n", config.task, "rows", "unusable", "cut", "tokens: min, median, max");
    for (const auto& [name, split] : splits) {
      const Json& s = json[name];
      fmt::print("{:<6} {:>8} {:>9} {:>8}   {}, {}, {}\n", name, s["rows"].get<int64_t>(), s["unusable"].get<int64_t>(),
                 s["cut"].get<int64_t>(), s["length"]["min"].get<int64_t>(), s["length"]["median"].get<int64_t>(),
                 s["length"]["max"].get<int64_t>());
      for (const std::string& problem : split->problems) fmt::print("       {}\n", shown_message(problem));
    }
    if (data.labels.size() <= 20 && !data.labels.empty()) {
      fmt::print("labels of the training rows:");
      for (const auto& [label, count] : json["train"]["labels"].items())
        fmt::print(" {}: {}", shown(label), count.get<int64_t>());
      fmt::print("\n");
    }
    if (data.task == "listops") fmt::print("every value was computed again and is correct\n");
  }
  if (!describe_problems(data).empty())
    throw data_error("{} unusable rows", data.train.bad + data.valid.bad + data.test.bad);
}

}  // namespace strata
