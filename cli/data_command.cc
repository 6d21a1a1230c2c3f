#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "bind.h"
#include "commands.h"
#include "data/cache.h"
#include "data/download.h"
#include "data/generate.h"
#include "data/listops.h"
#include "data/task.h"
#include "util/error.h"
#include "util/progress.h"

namespace strata {
namespace {

struct State {
  DataConfig data;
  OptionTable table;
  std::string task, url, digest;
  bool again = false, json = false;
};

// ------------------------------------------------------------------------------------------------- list

std::string cached_state(const Task& task) {
  const fs::path folder = cache_folder() / task.name;
  if (std::string(task.name) == "listops") {
    if (!fs::is_directory(folder)) return "made when first used";
    const auto sets = std::count_if(fs::directory_iterator(folder), fs::directory_iterator(),
                                    [](const auto& entry) { return fs::exists(entry.path() / "manifest.json"); });
    return fmt::format("{} sets made", sets);
  }
  if (task.goal == Goal::kNextToken || std::string(task.name) == "table") return "your own files";
  return check_set(folder, false).present ? "in the cache" : "not in the cache";
}

void list_tasks(bool json) {
  Json all = Json::array();
  for (const Task& task : tasks()) {
    all.push_back({{"task", task.name},
                   {"summary", task.summary},
                   {"length", task.length},
                   {"tree", task.tree},
                   {"source", task.source},
                   {"state", cached_state(task)}});
  }
  if (json) return fmt::print("{}\n", all.dump(2));
  fmt::print("{:<8} {:<52} {:>6}  {:<9} {}\n", "task", "what", "length", "tree", "data");
  for (const Json& t : all) {
    fmt::print("{:<8} {:<52} {:>6}  {:<9} {} ({})\n", t["task"].get<std::string>(), t["summary"].get<std::string>(),
               t["length"].get<int64_t>(), t["tree"].get<std::string>(), t["state"].get<std::string>(),
               t["source"].get<std::string>());
  }
  fmt::print("\ncache: {}\n", cache_folder().string());
}

// ------------------------------------------------------------------------------------------------- make, get

void make(State& state) {
  if (state.task != "listops")
    throw usage_error("data make: only listops is made; {} is {}", state.task, find_task(state.task).source);
  const SetState there = check_set(listops_folder(state.data), /*read_files=*/false);
  const Clock clock(0);
  const fs::path folder = make_listops_set(state.data, state.again);
  const double seconds = clock.seconds();
  if (there.present && there.problems.empty() && !state.again) {
    Progress().note("in the cache already; --again makes it anew");
  } else {
    const int64_t rows = check_set(folder, /*read_files=*/false).manifest["origin"]["rows"];
    Progress().note(fmt::format("{} rows in {:.2f} s: {:.0f} a second, writing included", rows, seconds,
                                static_cast<double>(rows) / seconds));
  }
  fmt::print("{}\n", folder.string());
}

void get(const State& state) {
  const auto& sources = download_sources();
  const auto found = std::find_if(sources.begin(), sources.end(), [&](const auto& s) { return state.task == s.task; });
  if (found == sources.end())
    throw usage_error("data get: expected imdb or cifar10, got {}; {} is {}", state.task, state.task,
                      find_task(state.task).source);
  DownloadSource source = *found;
  if (!state.url.empty()) source.url = state.url;
  if (!state.digest.empty()) source.digest = state.digest;
  const fs::path folder = cache_folder() / source.task;
  if (const SetState there = check_set(folder, false); there.present && there.problems.empty() && !state.again) {
    Progress().note("in the cache already; --again fetches it anew");
    fmt::print("{}\n", folder.string());
    return;
  }
  make_folder(folder.parent_path());
  const fs::path archive = folder.string() + ".tar.gz";
  Progress progress;
  if (!fs::exists(archive)) {
    const Clock clock(0);
    download(source, archive, [&](int64_t bytes, int64_t total) {
      constexpr double kMega = 1e6;
      progress.show(fmt::format("{} {:.1f} of {:.1f} MB  {} left",
                                bar(total > 0 ? static_cast<double>(bytes) / static_cast<double>(total) : 0),
                                static_cast<double>(bytes) / kMega, static_cast<double>(total) / kMega,
                                clock.left(bytes, total)));
    });
  }
  progress.note("unpacking");
  try {
    unpack_set(source, archive, folder);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kData) fs::remove(archive);  // another archive, or a damaged one
    throw;
  }
  fs::remove(archive);
  fmt::print("{}\n", folder.string());
}

// ------------------------------------------------------------------------------------------------- check

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

void check(State& state) {
  DataConfig config = state.data;
  config.task = state.task;
  const fs::path cached = state.task == "listops" ? listops_folder(config) : cache_folder() / state.task;
  if (config.data.empty()) {
    const SetState set = check_set(cached, /*read_files=*/true);
    if (set.present && !set.problems.empty()) {
      throw data_error("{}: {}; make or get it again with --again", cached.string(), fmt::join(set.problems, "; "));
    }
  } else if (state.task == "listops" && config.length == 0) {
    config.length = std::numeric_limits<int32_t>::max();  // every row counts, however long
  }
  const TaskData data = load_task(config);
  Json json = {{"task", data.task}};
  const std::pair<const char*, const Dataset*> splits[] = {
      {"train", &data.train}, {"valid", &data.valid}, {"test", &data.test}};
  for (const auto& [name, split] : splits) json[name] = describe_split(*split, data.labels);
  if (state.json) {
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{:<6} {:>8} {:>9} {:>8}   {}\n", state.task, "rows", "unusable", "cut", "tokens: min, median, max");
    for (const auto& [name, split] : splits) {
      const Json& s = json[name];
      fmt::print("{:<6} {:>8} {:>9} {:>8}   {}, {}, {}\n", name, s["rows"].get<int64_t>(), s["unusable"].get<int64_t>(),
                 s["cut"].get<int64_t>(), s["length"]["min"].get<int64_t>(), s["length"]["median"].get<int64_t>(),
                 s["length"]["max"].get<int64_t>());
      for (const std::string& problem : split->problems) fmt::print("       {}\n", problem);
    }
    if (data.labels.size() <= 20 && !data.labels.empty()) {
      fmt::print("labels of the training rows:");
      for (const auto& [label, count] : json["train"]["labels"].items())
        fmt::print(" {}: {}", label, count.get<int64_t>());
      fmt::print("\n");
    }
    if (data.task == "listops") fmt::print("every value was computed again and agrees\n");
  }
  if (!describe_problems(data).empty())
    throw data_error("{} unusable rows", data.train.bad + data.valid.bad + data.test.bad);
}

CLI::App* add(CLI::App* parent, const std::shared_ptr<State>& state, const char* name, const char* help) {
  CLI::App* command = parent->add_subcommand(name, help);
  if (std::string(name) != "list")
    command->add_option("task", state->task, "Which task")->required()->type_name("TASK");
  return command;
}

}  // namespace

void add_data_command(CLI::App& app) {
  auto state = std::make_shared<State>();
  CLI::App* data = app.add_subcommand("data", "List, make, get and check data sets");
  data->require_subcommand(1);
  data->footer(examples(
      "  strata data list\n"
      "  strata data make listops --train-rows 96000 --min-length 500 --length 2000 --max-depth 10 --max-args 10\n"
      "  strata data get imdb\n"
      "  strata data check table --data reviews.csv --label-column stars --text-column review"));
  declare(state->table, state->data);

  CLI::App* list = add(data, state, "list", "Which tasks there are, and whether their data is here");
  list->add_flag("--json", state->json, "Print JSON");
  list->callback([state] { list_tasks(state->json); });

  auto bind = [&](CLI::App* command) { bind_options(*command, state->table, {"task"}); };  // an argument says it
  CLI::App* make_command = add(data, state, "make", "Generate a set into the cache; prints its folder");
  bind(make_command);
  make_command->add_flag("--again", state->again, "Make it anew");
  make_command->callback([state, make_command] {
    refuse_extras(*make_command);
    state->table.check_task(state->task);
    make(*state);
  });

  CLI::App* get_command = add(data, state, "get", "Download an official archive into the cache; prints its folder");
  get_command->add_option("--url", state->url, "Another place to get it from")->type_name("URL");
  get_command->add_option("--digest", state->digest, "What it must hash to: sha256:HEX, md5:HEX or none")
      ->type_name("TEXT");
  get_command->add_flag("--again", state->again, "Fetch it anew");
  get_command->callback([state] { get(*state); });

  CLI::App* check_command = add(data, state, "check", "Read a whole set and say what is in it");
  bind(check_command);
  check_command->add_flag("--json", state->json, "Print JSON");
  check_command->callback([state, check_command] {
    refuse_extras(*check_command);
    state->table.check_task(state->task);
    check(*state);
  });
}

}  // namespace strata
