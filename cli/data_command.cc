#include <fmt/format.h>

#include <algorithm>

#include "bind.h"
#include "commands.h"
#include "data/cache.h"
#include "data/download.h"
#include "data/generate.h"
#include "data/listops.h"
#include "data/task.h"
#include "data_check.h"
#include "util/common_options.h"
#include "util/error.h"
#include "util/progress.h"

namespace strata {
namespace {

struct DataState {  // of one of the four commands
  DataConfig data;
  OptionTable table;
  std::string url, digest;
  bool again = false, json = false;
};

// ------------------------------------------------------------------------------------------------- list

std::string cached_state(const Task& task) {
  if (std::string(task.name) == "recall") return "generated";
  if (task.goal == Goal::kNextToken || std::string(task.name) == "table") return "your own files";
  if (find_cache_folder().empty()) return "no cache";
  const fs::path folder = cache_folder() / set_of(task.name);
  if (std::string(task.name) == "listops") {
    if (!fs::is_directory(folder)) return "generated at first use";
    const auto sets = std::count_if(fs::directory_iterator(folder), fs::directory_iterator(),
                                    [](const auto& entry) { return fs::exists(entry.path() / "manifest.json"); });
    return fmt::format("{} sets generated", sets);
  }
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
  const fs::path cache = find_cache_folder();
  fmt::print("\ncache: {}\n", cache.empty() ? "none: neither HOME nor XDG_CACHE_HOME is set" : cache.string());
}

// ------------------------------------------------------------------------------------------------- make, get

void make(DataState& state) {
  const std::string& task = state.data.task;
  if (task != "listops")
    throw usage_error("data make: expected listops, got {}; its data: {}", task, find_task(task).source);
  const SetState there = check_set(listops_folder(state.data), /*read_files=*/false);
  const Clock clock(0);
  const fs::path folder = make_listops_set(state.data, state.again);
  const double seconds = clock.seconds();
  if (there.present && there.problems.empty() && !state.again) {
    Progress().note("already in the cache; --again generates it again");
  } else {
    const int64_t rows = check_set(folder, /*read_files=*/false).manifest["origin"]["rows"];
    Progress().note(fmt::format("{} rows in {:.2f} s: {:.0f} per second, including writing", rows, seconds,
                                static_cast<double>(rows) / seconds));
  }
  fmt::print("{}\n", folder.string());
}

void get(const DataState& state) {
  const auto& sources = download_sources();
  const std::string& task = state.data.task;
  const auto found = std::find_if(sources.begin(), sources.end(), [&](const auto& s) { return task == s.task; });
  if (found == sources.end())
    throw usage_error("data get: expected imdb or cifar10, got {}; its data: {}", task, find_task(task).source);
  DownloadSource source = *found;
  if (!state.url.empty()) source.url = state.url;
  if (!state.digest.empty()) source.digest = state.digest;
  const fs::path folder = cache_folder() / source.task;
  const fs::path archive = folder.string() + ".tar.gz";
  if (const SetState there = check_set(folder, false); there.present && there.problems.empty() && !state.again) {
    Progress().note("already in the cache; --again downloads it again");
    fs::remove(archive);  // if it could not be removed before
    fmt::print("{}\n", folder.string());
    return;
  }
  make_folder(folder.parent_path());
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
    if (error.code() == ExitCode::kData) fs::remove(archive);  // damaged, or not the expected archive
    throw;
  }
  fs::remove(archive);
  fmt::print("{}\n", folder.string());
}

// The task is an argument, and in config files the key `task`. names: those the help shows
void add_task(CLI::App* command, const std::shared_ptr<DataState>& state, const std::string& names) {
  auto set = [state](const std::string& word) { state->table.set(*state->table.find("task"), {word}, "task"); };
  command->add_option_function<std::string>("task", set, "A task (strata data list)")->required()->type_name(names);
}

void add_again(OptionTable& table, bool& again) {
  table.begin_group("Running");
  table.add("again", &again, {.help = "Do it again, even if the data is in the cache"});
}

void add_list(CLI::App* data) {
  auto state = std::make_shared<DataState>();
  CLI::App* command = data->add_subcommand("list", "List the tasks, and whether their data is in the cache");
  declare_json(state->table, state->json);
  bind_command(*command, state->table, [state] { list_tasks(state->json); });
}

void add_make(CLI::App* data) {
  auto state = std::make_shared<DataState>();
  CLI::App* command = data->add_subcommand("make", "Generate a set into the cache; prints its folder");
  add_task(command, state, "listops");
  declare(state->table, state->data);
  add_again(state->table, state->again);
  bind_command(*command, state->table, [state] { make(*state); }, {.except = {"task"}});
}

void add_get(CLI::App* data) {
  auto state = std::make_shared<DataState>();
  CLI::App* command = data->add_subcommand("get", "Download an official archive into the cache; prints its folder");
  add_task(command, state, "imdb|cifar10");
  OptionTable& table = state->table;
  table.add("task", &state->data.task, {.help = "A task (strata data list)", .choices = task_names()});
  table.begin_group("Data");
  table.add("url", &state->url, {.help = "Download from here instead of the official place", .type = "URL"});
  table.add("digest", &state->digest, {.help = "Expected digest: sha256:HEX, md5:HEX or none"});
  add_again(table, state->again);
  bind_command(*command, table, [state] { get(*state); }, {.except = {"task"}});
}

void add_check(CLI::App* data) {
  auto state = std::make_shared<DataState>();
  CLI::App* command = data->add_subcommand("check", "Read a whole set and describe its content");
  add_task(command, state, fmt::format("{}", fmt::join(task_names(), "|")));
  declare(state->table, state->data);
  declare_json(state->table, state->json);
  bind_command(*command, state->table, [state] { check_data(state->data, state->json); }, {.except = {"task"}});
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "List, make, get and check data sets");
  data->require_subcommand(1);
  data->footer(examples(
      "  strata data list\n"
      "  strata data make listops --train-rows 96000 --min-length 500 --length 2000 --max-depth 10 --max-args 10\n"
      "  strata data get imdb\n"
      "  strata data check table --data reviews.csv --label-column stars --text-column review"));
  add_list(data);
  add_make(data);
  add_get(data);
  add_check(data);
}

}  // namespace strata
