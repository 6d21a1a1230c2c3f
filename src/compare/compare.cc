#include "compare/compare.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "compare/record.h"
#include "compare/runs.h"
#include "compare/search.h"
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

// The runs of a comparison: those of its search, and those of its table.
class Comparison {
 public:
  Comparison(const RunConfig& base, const CompareOptions& options, const fs::path& folder, const std::string& program,
             const TaskData& data)
      : base_(base), options_(options), folder_(folder), rows_(data.train.size()), files_(describe_files(data.files)) {
    run_options_ = {0, options.minutes, options.quiet, options.allow_changed_data, program};
  }

  // Makes the runs of the variants, and returns when all are finished, here or by other processes.
  std::vector<Run> run(const std::vector<Variant>& variants, int64_t seeds, const fs::path& folder, bool searching) {
    const auto cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
    const auto count = static_cast<int64_t>(variants.size()) * seeds;
    // Runs that share a GPU wait for each other: one at a time, unless --jobs is given.
    run_options_.jobs = options_.jobs > 0 ? options_.jobs : base_.train.device == "cuda" ? 1 : std::min(cores, count);
    run_options_.searching = searching;
    std::unique_ptr<FolderLock> lock = wait_for_lock(folder_);
    std::vector<Run> runs =
        make_runs(variants, base_.train.seed, seeds, folder, std::max<int64_t>(1, cores / run_options_.jobs));
    check_data_of_runs(runs, files_, options_.allow_changed_data);
    lock.reset();
    run_all(runs, run_options_);
    check_data_of_runs(runs, Json(), options_.allow_changed_data);
    all_.insert(all_.end(), runs.begin(), runs.end());
    return runs;
  }
  const std::vector<Run>& all() const { return all_; }

  // Scores on the validation rows after a part of the steps, with the first seed; NaN where the run diverged.
  std::vector<double> valid_scores(std::vector<Variant> variants) {
    for (Variant& variant : variants) {
      TrainConfig& train = variant.config.train;
      train.steps =
          std::max<int64_t>(1, std::llround(options_.search_part * static_cast<double>(steps_of(train, rows_))));
    }
    std::vector<double> scores;
    for (const Run& one : run(variants, 1, folder_ / "search", /*searching=*/true))
      scores.push_back(fs::exists(one.diverged()) ? NAN : score_of(read_result(one.folder), "valid"));
    return scores;
  }

 private:
  const RunConfig& base_;
  const CompareOptions& options_;
  const fs::path& folder_;
  int64_t rows_;
  Json files_;
  RunOptions run_options_;
  std::vector<Run> all_;  // that were made so far
};

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
  std::vector<Variant> variants = parse_variants(options.attentions, base);
  const std::vector<double> rates =
      options.search_rates.empty() ? std::vector<double>() : parse_rates(options.search_rates);
  Json plan = {{"attentions", options.attentions}, {"seeds", options.seeds}, {"options", record_of(base)}};
  if (!rates.empty()) plan["search"] = {{"rates", rates}, {"part", options.search_part}};
  make_folder(folder);
  std::unique_ptr<FolderLock> lock = wait_for_lock(folder);
  remove_stray_parts(folder.string());
  claim_folder(folder, plan);
  const TaskData data = load_task(base.data);  // generated, or found to be missing, once, before any run starts
  lock.reset();
  for (const std::string& problem : describe_problems(data)) Progress(options.quiet).note("warning: " + problem);

  Json results = {{"task", base.data.task}, {"seeds", options.seeds}, {"first_seed", base.train.seed}};
  Comparison comparison(base, options, folder, program, data);
  if (!rates.empty()) {
    const std::vector<RateChoice> choices =
        search_rates(variants, rates, lower_is_better(data.task),
                     [&](const std::vector<Variant>& tried) { return comparison.valid_scores(tried); });
    results["search"] = {{"seed", base.train.seed}, {"part", options.search_part}, {"attentions", to_json(choices)}};
  }
  const std::vector<Run> runs = comparison.run(variants, options.seeds, folder, /*searching=*/false);
  lock = wait_for_lock(folder);
  results.update(summarize(summaries_of(variants, runs), measure_of(data.task), lower_is_better(data.task)));
  results["options"] = record_of(base);
  results["record"] = record_of_runs(comparison.all());
  write_json(folder / "results.json", results);
  write_file(folder / "results.md", to_markdown(results));
  write_file(folder / "results.csv", to_csv(results));
  return results;
}

}  // namespace strata
