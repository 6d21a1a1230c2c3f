#include "compare/compare.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numbers>
#include <thread>

#include "data/task.h"
#include "train/metrics.h"
#include "train/trainer.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/progress.h"

namespace strata {
namespace {

struct Run {
  std::string label;  // "hkt, seed 2"
  RunFolder folder;
  RunConfig config;
  bool finished() const { return fs::exists(folder.result()); }
  // Share of its steps that are done.
  double share() const {
    if (finished()) return 1;
    const std::vector<Json> lines = read_metrics(folder.root);
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
      if (line->contains("steps")) return line->at("step").get<double>() / line->at("steps").get<double>();
    }
    return 0;
  }
};

Json record_of(const RunConfig& config) {
  RunConfig copy = config;
  OptionTable table;
  declare(table, copy);
  return table.record();
}

// What the records of the runs have in common: when the first started and the last finished, the data, and every
// combination of versions and machine.
Json record_of_runs(const std::vector<Run>& runs) {
  Json record = {{"command", "compare"},
                 {"data", Json()},
                 {"computed_on", Json::array()},
                 {"started", Json()},
                 {"finished", Json()}};
  for (const Run& run : runs) {
    const Json one = Json::parse(read_file(run.folder.run()), nullptr, false);
    if (!one.is_object() || !one.contains("versions") || !one.contains("machine")) continue;  // of an older version
    if (record["data"].is_null()) record["data"] = one.value("data", Json());
    const Json where = {{"versions", one["versions"]}, {"machine", one["machine"]}};
    Json& all = record["computed_on"];
    if (std::find(all.begin(), all.end(), where) == all.end()) all.push_back(where);
    auto keep = [&](const char* key, auto better) {  // times in ISO 8601 are in the order of their letters
      if (one.contains(key) && (record[key].is_null() || better(one[key].get<std::string>(), record[key])))
        record[key] = one[key];
    };
    keep("started", std::less<std::string>());
    keep("finished", std::greater<std::string>());
  }
  return record;
}

// A folder that holds another comparison is refused, with the first option that differs.
void claim_folder(const fs::path& folder, const Json& plan) {
  const fs::path path = folder / "compare.json";
  if (!fs::exists(path)) return write_json(path, plan);
  Json there = Json::parse(read_file(path), nullptr, false);
  if (there.is_object() && there.contains("options") && there["options"].is_object()) {
    // An option that came later had its default then.
    const Json defaults = record_of(RunConfig());
    for (const auto& [key, value] : defaults.items()) {
      if (!there["options"].contains(key)) there["options"][key] = value;
    }
  }
  if (nlohmann::json(there) == nlohmann::json(plan)) return;  // whatever the order of the options
  std::string what = "its plan is damaged";
  if (there.is_object()) {
    const Json before = there.flatten(), now = plan.flatten();
    for (const auto& [key, value] : now.items()) {
      if (!before.contains(key) || before[key] != value) {
        what = fmt::format("{} is {} there and {} here", key, before.contains(key) ? before[key].dump() : "missing",
                           value.dump());
        break;
      }
    }
  }
  throw output_error("{}: holds another comparison ({}); choose another --folder", folder.string(), what);
}

pid_t start(const Run& run, const std::string& program) {
  const std::string log = (run.folder.root / "log.txt").string();
  const int out = open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
  if (out < 0) throw output_error("{}: cannot be written", log);
  const std::string threads = std::to_string(run.config.train.threads), root = run.folder.root.string();
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);                     // Ctrl-C reaches the parent alone, which passes it on once
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // and if the parent is killed, the child saves and stops
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    setenv("OMP_NUM_THREADS", threads.c_str(), 1);
    setenv("GOMP_SPINCOUNT", "10000", 0);  // see cli/main.cc
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execl(program.c_str(), program.c_str(), "train", "--resume", root.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(out);
  if (child < 0) throw Error(ExitCode::kFailure, "no process could be started for " + run.label);
  return child;
}

bool predicts_bytes(const std::string& task) { return find_task(task).goal == Goal::kNextToken; }
std::string measure_of(const std::string& task) {
  return predicts_bytes(task) ? "test bits per byte" : "test accuracy, %";
}
double score_of(const Json& result, const char* split = "test") {
  const Json& scores = result.at(split);
  if (predicts_bytes(result.at("task"))) return scores.at("loss").get<double>() / std::numbers::ln2;
  return 100 * scores.at("accuracy").get<double>();
}

std::string last_line(const fs::path& path) {
  std::string text = fs::exists(path) ? read_file(path) : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
}

// Keeps `jobs` runs going until all are finished, one fails, the minutes are over, or the user interrupts.
void run_all(const std::vector<Run>& runs, int64_t jobs, const std::string& program, double minutes, bool quiet) {
  const auto start_time = std::chrono::steady_clock::now();
  auto is_over = [&] {
    return minutes > 0 &&
           std::chrono::steady_clock::now() - start_time >= std::chrono::duration<double, std::ratio<60>>(minutes);
  };
  auto stopping = [&] { return interrupted() || is_over(); };
  const std::string measure = measure_of(runs[0].config.data.task);
  std::vector<const Run*> waiting;
  for (const Run& run : runs) {
    if (!run.finished()) waiting.push_back(&run);
  }
  std::reverse(waiting.begin(), waiting.end());
  auto share = [&] {
    double sum = 0;
    for (const Run& run : runs) sum += run.share();
    return sum / static_cast<double>(runs.size());
  };
  constexpr int64_t kScale = 100000;
  const Clock clock(static_cast<int64_t>(kScale * share()));
  Progress progress(quiet);
  std::map<pid_t, const Run*> running;
  std::string failure;
  int failure_code = 0;
  bool told = false;
  while (!running.empty() || (!waiting.empty() && failure.empty() && !stopping())) {
    while (!waiting.empty() && failure.empty() && !stopping() && static_cast<int64_t>(running.size()) < jobs) {
      running[start(*waiting.back(), program)] = waiting.back();
      waiting.pop_back();
    }
    if (stopping() && !told) {
      for (const auto& [child, run] : running) kill(child, SIGTERM);
      told = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    int status = 0;
    for (pid_t child = waitpid(-1, &status, WNOHANG); child > 0; child = waitpid(-1, &status, WNOHANG)) {
      const Run* run = running[child];
      running.erase(child);
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (code == 0) {
        const Json result = Json::parse(read_file(run->folder.result()));
        progress.note(fmt::format("{}: {} {:.2f}, {} steps in {}", run->label, measure, score_of(result),
                                  result.at("steps").get<int64_t>(), duration(result.at("train_seconds"))));
      } else if (!told && failure.empty()) {
        failure = fmt::format("{} failed: {} (see {})", run->label, last_line(run->folder.root / "log.txt"),
                              (run->folder.root / "log.txt").string());
        failure_code = code;
      }
    }
    const double done = share();
    std::string names;
    for (const auto& [child, run] : running) names += fmt::format("{}{}", names.empty() ? "" : "; ", run->label);
    progress.show(fmt::format("{} {:.0f}% of {} runs  {} left  ({})", bar(done), 100 * done, runs.size(),
                              clock.left(static_cast<int64_t>(kScale * done), kScale), names));
  }
  progress.finish();
  if (!failure.empty())
    throw Error(failure_code > 0 && failure_code < 5 ? static_cast<ExitCode>(failure_code) : ExitCode::kFailure,
                failure);
  if (interrupted()) throw Error(ExitCode::kInterrupted, "interrupted; every run is saved, the same command goes on");
  if (std::any_of(runs.begin(), runs.end(), [](const Run& run) { return !run.finished(); })) {
    throw Error(ExitCode::kInterrupted,
                fmt::format("{:g} minutes are over; every run is saved, the same command goes on", minutes));
  }
}

}  // namespace

// What a file system may not like becomes a dash.
fs::path run_folder(const fs::path& folder, const std::string& attention, int64_t seed) {
  std::string name = attention;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '=' && c != '.' && c != '_') c = '-';
  }
  return folder / fmt::format("{}-seed{}", name, seed);
}

std::vector<Variant> parse_variants(const std::vector<std::string>& names, const RunConfig& base) {
  std::vector<Variant> variants;
  for (const std::string& name : names) {
    Variant variant{name, base};
    OptionTable table;
    declare(table, variant.config);
    for (size_t at = 0, part = 0; at <= name.size(); ++part) {
      const size_t end = std::min(name.find(':', at), name.size());
      const std::string word = name.substr(at, end - at);
      const size_t equals = word.find('=');
      const std::string key = part == 0 ? "attention" : word.substr(0, equals);
      Option* option = table.find(key);
      if (option == nullptr || (part > 0 && equals == std::string::npos)) {
        throw usage_error("--attentions {}: expected ATTENTION or ATTENTION:OPTION=VALUE, got \"{}\"", name, word);
      }
      table.set(*option, {part == 0 ? word : word.substr(equals + 1)}, "--attentions " + name);
      at = end + 1;
    }
    table.check_task(variant.config.data.task);
    for (const Variant& other : variants) {
      if (other.name == name) throw usage_error("--attentions: {} appears twice", name);
    }
    variants.push_back(std::move(variant));
  }
  if (variants.empty()) throw usage_error("--attentions: expected at least one");
  return variants;
}

Json compare(const RunConfig& base, const CompareOptions& options, const fs::path& folder, const std::string& program) {
  const std::vector<Variant> variants = parse_variants(options.attentions, base);
  make_folder(folder);
  const FolderLock lock(folder);
  claim_folder(folder, {{"attentions", options.attentions}, {"seeds", options.seeds}, {"options", record_of(base)}});
  const TaskData data = load_task(base.data);  // made or found missing once, before any run starts
  for (const std::string& problem : describe_problems(data)) Progress(options.quiet).note("warning: " + problem);

  const auto cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const auto count = static_cast<int64_t>(variants.size()) * options.seeds;
  // Runs that share a GPU wait for each other: one at a time, unless the user knows better.
  const int64_t jobs = options.jobs > 0 ? options.jobs : base.train.device == "cuda" ? 1 : std::min(cores, count);
  std::vector<Run> runs;
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    for (const Variant& variant : variants) {
      Run run;
      run.config = variant.config;
      run.config.train.seed = base.train.seed + seed;
      if (run.config.train.threads == 0) run.config.train.threads = std::max<int64_t>(1, cores / jobs);
      run.label = fmt::format("{}, seed {}", variant.name, run.config.train.seed);
      run.folder = {run_folder(folder, variant.name, run.config.train.seed)};
      make_folder(run.folder.root);
      if (!fs::exists(run.folder.run())) write_json(run.folder.run(), {{"options", record_of(run.config)}});
      runs.push_back(std::move(run));
    }
  }
  run_all(runs, jobs, program, options.minutes, options.quiet);

  std::vector<AttentionSummary> summaries;
  for (size_t v = 0; v < variants.size(); ++v) {
    AttentionSummary summary;
    summary.name = variants[v].name;
    std::vector<double> times;
    for (size_t r = v; r < runs.size(); r += variants.size()) {
      const Json result = Json::parse(read_file(runs[r].folder.result()));
      summary.scores.push_back(score_of(result));
      summary.valid.push_back(score_of(result, "valid"));
      summary.parameters = result.at("parameters");
      summary.score_ratio = result.at("score_ratio");
      times.push_back(result.at("step_milliseconds"));
    }
    summary.step_milliseconds = median(times);
    summaries.push_back(std::move(summary));
  }
  Json results = {{"task", base.data.task}, {"seeds", options.seeds}, {"first_seed", base.train.seed}};
  results.update(summarize(summaries, measure_of(data.task), predicts_bytes(data.task)));
  results["options"] = record_of(base);
  results["record"] = record_of_runs(runs);
  write_json(folder / "results.json", results);
  write_file(folder / "results.md", to_markdown(results));
  write_file(folder / "results.csv", to_csv(results));
  return results;
}

}  // namespace strata
