#include "compare/compare.h"

#include <algorithm>
#include <thread>

#include "compare/runs.h"
#include "compare/tables.h"
#include "data/task.h"
#include "train/same_data.h"
#include "util/atomic_file.h"
#include "util/digest.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/progress.h"
#include "util/text.h"

namespace strata {
namespace {

Json record_of(const RunConfig& config) {
  RunConfig copy = config;
  copy.model = resolved(copy.model);
  OptionTable table;
  declare(table, copy);
  return table.record();
}

// One record for all runs: the start of the first, the end of the last, the data, and every combination of versions and
// machine.
Json record_of_runs(const std::vector<Run>& runs) {
  Json record = {{"command", "compare"},
                 {"data", Json()},
                 {"computed_on", Json::array()},
                 {"started", Json()},
                 {"finished", Json()}};
  for (const Run& run : runs) {
    const Json one = parse_json<Json>(read_file(run.folder.run()));
    if (!one.is_object() || !one.contains("versions") || !one.contains("machine")) continue;  // of an older version
    if (record["data"].is_null()) record["data"] = one.value("data", Json());
    const Json where = {{"versions", one["versions"]}, {"machine", one["machine"]}};
    Json& all = record["computed_on"];
    if (std::find(all.begin(), all.end(), where) == all.end()) all.push_back(where);
    auto keep = [&](const char* key, auto better) {  // times in ISO 8601 sort as words
      if (one.contains(key) && one[key].is_string() &&
          (record[key].is_null() || better(one[key].get<std::string>(), record[key])))
        record[key] = one[key];
    };
    keep("started", std::less<std::string>());
    keep("finished", std::greater<std::string>());
  }
  return record;
}

// Refuses a folder that holds another comparison, and names the first option that differs.
void claim_folder(const fs::path& folder, const Json& plan) {
  const fs::path path = folder / "compare.json";
  if (!fs::exists(path)) return write_json(path, plan);
  Json there = parse_json<Json>(read_file(path));
  if (there.is_object() && there.contains("options") && there["options"].is_object()) {
    // An option that did not exist then had its default.
    const Json defaults = record_of(RunConfig());
    for (const auto& [key, value] : defaults.items()) {
      if (!there["options"].contains(key)) there["options"][key] = value;
    }
  }
  if (nlohmann::json(there) == nlohmann::json(plan)) return;  // in any order of the options
  std::string what = "its plan is damaged";
  if (there.is_object()) {
    const Json before = there.flatten(), now = plan.flatten();
    for (const auto& [key, value] : now.items()) {
      if (!before.contains(key) || before[key] != value) {
        what = fmt::format("{} is {} there and {} here", key,
                           before.contains(key) ? shown(before[key].dump()) : "missing", shown(value.dump()));
        break;
      }
    }
  }
  throw output_error("{}: already holds another comparison ({}); choose another --folder", folder.string(), what);
}

// Several processes may work on one comparison: only the start and the tables are done by one at a time.
std::unique_ptr<FolderLock> wait_for_lock(const fs::path& folder) {
  constexpr std::chrono::milliseconds kPoll(50);
  for (;;) {
    if (std::unique_ptr<FolderLock> lock = FolderLock::try_lock(folder)) return lock;
    if (interrupted()) throw Error(ExitCode::kInterrupted, "interrupted; the same command continues");
    std::this_thread::sleep_for(kPoll);
  }
}

// The runs, seed by seed, with their folders. Runs that do not name a number of threads get `threads`.
std::vector<Run> make_runs(const std::vector<Variant>& variants, int64_t first_seed, int64_t seeds,
                           const fs::path& folder, int64_t threads) {
  std::vector<Run> runs;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    for (const Variant& variant : variants) {
      Run run;
      run.config = variant.config;
      run.config.train.seed = first_seed + seed;
      run.config.data = with_absolute_paths(run.config.data);
      if (run.config.train.threads == 0) run.config.train.threads = threads;
      run.label = fmt::format("{}, seed {}", variant.name, run.config.train.seed);
      run.folder = {run_folder(folder, variant.name, run.config.train.seed)};
      make_folder(run.folder.root);
      if (!fs::exists(run.folder.run())) write_json(run.folder.run(), {{"options", record_of(run.config)}});
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

std::vector<AttentionSummary> summaries_of(const std::vector<Variant>& variants, const std::vector<Run>& runs) {
  std::vector<AttentionSummary> summaries;
  for (size_t v = 0; v < variants.size(); ++v) {
    AttentionSummary summary;
    summary.name = variants[v].name;
    std::vector<double> times;
    for (size_t r = v; r < runs.size(); r += variants.size()) {
      const Json result = read_result(runs[r].folder);
      summary.scores.push_back(score_of(result));
      summary.valid.push_back(score_of(result, "valid"));
      summary.parameters = result.at("parameters");
      summary.score_ratio = result.at("score_ratio");
      times.push_back(result.at("step_milliseconds"));
      if (result.at("test").contains("parts")) summary.parts.push_back(result["test"]["parts"]);
    }
    summary.step_milliseconds = median(times);
    summaries.push_back(std::move(summary));
  }
  return summaries;
}

// Every run must have read the same data: that of `now`, or, if it is null, that of the first run.
void check_data_of_runs(const std::vector<Run>& runs, Json now, bool allowed) {
  for (const Run& run : runs) {
    const Json recorded = read_run(run.folder).value("data", Json());
    if (now.is_null()) now = recorded;
    if (data_changes(recorded, now).empty()) continue;
    check_same_data(recorded, now, allowed);
    return;  // one warning is enough
  }
}

}  // namespace

// Characters that a file system may refuse become dashes.
fs::path run_folder(const fs::path& folder, const std::string& attention, int64_t seed) {
  std::string name = attention;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '=' && c != '.' && c != '_') c = '-';
  }
  return folder / fmt::format("{}-seed{}", name, seed);
}

Json compare(const RunConfig& base, const CompareOptions& options, const fs::path& folder, const std::string& program) {
  const std::vector<Variant> variants = parse_variants(options.attentions, base);
  make_folder(folder);
  std::unique_ptr<FolderLock> lock = wait_for_lock(folder);
  remove_stray_parts(folder.string());
  claim_folder(folder, {{"attentions", options.attentions}, {"seeds", options.seeds}, {"options", record_of(base)}});
  const TaskData data = load_task(base.data);  // generated, or found to be missing, once, before any run starts
  for (const std::string& problem : describe_problems(data)) Progress(options.quiet).note("warning: " + problem);

  const auto cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const auto count = static_cast<int64_t>(variants.size()) * options.seeds;
  // Runs that share a GPU wait for each other: one at a time, unless --jobs is given.
  const int64_t jobs = options.jobs > 0 ? options.jobs : base.train.device == "cuda" ? 1 : std::min(cores, count);
  const std::vector<Run> runs =
      make_runs(variants, base.train.seed, options.seeds, folder, std::max<int64_t>(1, cores / jobs));
  check_data_of_runs(runs, describe_files(data.files), options.allow_changed_data);
  lock.reset();
  run_all(runs, {jobs, options.minutes, options.quiet, options.allow_changed_data, program});
  lock = wait_for_lock(folder);
  check_data_of_runs(runs, Json(), options.allow_changed_data);

  Json results = {{"task", base.data.task}, {"seeds", options.seeds}, {"first_seed", base.train.seed}};
  results.update(summarize(summaries_of(variants, runs), measure_of(data.task),
                           /*lower_is_better=*/find_task(data.task).is_scored_by_bits()));
  results["options"] = record_of(base);
  results["record"] = record_of_runs(runs);
  write_json(folder / "results.json", results);
  write_file(folder / "results.md", to_markdown(results));
  write_file(folder / "results.csv", to_csv(results));
  return results;
}

}  // namespace strata
