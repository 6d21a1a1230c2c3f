#include "compare/runs.h"

#include <fcntl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <numbers>
#include <thread>

#include "data/task.h"
#include "train/child.h"
#include "train/metrics.h"
#include "train/placement.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/progress.h"

namespace strata {

bool lower_is_better(const std::string& task) { return find_task(task).is_scored_by_bits(); }
std::string measure_of(const std::string& task, const std::string& split) {
  return (split == "valid" ? "validation" : split) + (lower_is_better(task) ? " bits per byte" : " accuracy, %");
}
double score_of(const Json& result, const char* split) {
  const Json& scores = result.at(split);
  if (find_task(result.at("task")).is_scored_by_bits()) return scores.at("loss").get<double>() / std::numbers::ln2;
  return 100 * scores.at("accuracy").get<double>();
}

namespace {

double number(const Json& line, const char* key) {
  return line.contains(key) && line[key].is_number() ? line[key].get<double>() : 0;
}

}  // namespace

double Run::share() const {
  if (finished()) return 1;
  const std::vector<Json> lines = read_metrics(folder.root);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const double step = number(*line, "step"), steps = number(*line, "steps");
    if (steps > 0) return std::clamp(step / steps, 0.0, 1.0);
  }
  return 0;
}

namespace {

pid_t start(const Run& run, const RunOptions& options) {
  const std::string log = (run.folder.root / "log.txt").string();
  const int out = open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (out < 0) throw output_error("{}: could not write ({})", log, std::strerror(errno));
  const std::string threads = std::to_string(run.config.train.threads), root = run.folder.root.string();
  const pid_t child = fork();
  if (child == 0) {
    clear_placement();  // a worker that srun started trains its runs alone
    settle_child();
    setenv("OMP_NUM_THREADS", threads.c_str(), 1);
    setenv("GOMP_SPINCOUNT", "10000", 0);  // see cli/main.cc
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    const char* const program = options.program.c_str();
    execl(program, program, "train", "--resume", root.c_str(),
          options.allow_changed_data ? "--allow-changed-data" : static_cast<char*>(nullptr),
          static_cast<char*>(nullptr));
    _exit(127);
  }
  close(out);
  if (child < 0) throw Error(ExitCode::kFailure, "could not start a process for " + run.label);
  return child;
}

std::string last_line(const fs::path& path) {
  std::string text = fs::exists(path) ? read_file(path) : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
}

class Runner {
 public:
  Runner(const std::vector<Run>& runs, const RunOptions& options)
      : runs_(runs), options_(options), clock_(scaled(share())), progress_(options.quiet) {
    for (const Run& run : runs) {
      if (!run.finished()) waiting_.push_back(&run);
    }
  }

  void run() {
    while (!running_.empty() || may_start()) {
      start_runs();
      if (is_stopping() && !told_) {
        for (const auto& [child, running] : running_) kill(child, SIGTERM);
        told_ = true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      int status = 0;
      for (pid_t child = waitpid(-1, &status, WNOHANG); child > 0; child = waitpid(-1, &status, WNOHANG))
        end(child, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
      show();
    }
    progress_.finish();
    throw_if_unfinished();
  }

 private:
  struct Running {
    const Run* run;
    std::unique_ptr<FolderLock> claim;
  };

  // Starts runs that nobody has claimed, as many as may go on at the same time.
  void start_runs() {
    for (auto run = waiting_.begin(); run != waiting_.end() && may_start() && has_room();) {
      std::unique_ptr<FolderLock> claim =
          (*run)->finished() ? nullptr : FolderLock::try_lock((*run)->folder.root, ".claim");
      if ((*run)->finished()) {  // by another process, which may have ended just now
        run = waiting_.erase(run);
      } else if (claim == nullptr || FolderLock::try_lock((*run)->folder.root) == nullptr) {
        ++run;  // another process has it, or its training is still about to stop
      } else {
        const pid_t child = start(**run, options_);
        running_[child] = {*run, std::move(claim)};
        run = waiting_.erase(run);
      }
    }
  }
  bool has_room() const { return static_cast<int64_t>(running_.size()) < options_.jobs; }

  static constexpr int64_t kScale = 100000;  // Clock counts in whole numbers
  static int64_t scaled(double share) { return static_cast<int64_t>(kScale * share); }

  bool is_over() const { return options_.minutes > 0 && seconds() >= 60 * options_.minutes; }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - options_.started).count();
  }
  bool is_stopping() const { return interrupted() || is_over(); }
  bool may_start() const { return !waiting_.empty() && failure_.empty() && !is_stopping(); }

  double share() const {
    double sum = 0;
    for (const Run& run : runs_) sum += run.share();
    return sum / static_cast<double>(runs_.size());
  }

  // A process has ended.
  void end(pid_t child, int code) {
    const Running ended = std::move(running_[child]);  // its claim goes at the end of this function
    const Run* run = ended.run;
    running_.erase(child);
    if (code == 0) {
      const Json result = read_result(run->folder);
      const char* const split = options_.searching ? "valid" : "test";
      progress_.note(fmt::format("{}: {} {:.2f}, {} steps in {}", run->label, measure_of(run->config.data.task, split),
                                 score_of(result, split), result.at("steps").get<int64_t>(),
                                 duration(result.at("train_seconds"))));
    } else if (code == static_cast<int>(ExitCode::kDiverged) && options_.searching) {
      const std::string message = last_line(run->folder.root / "log.txt");
      write_json(run->diverged(), {{"message", message}});
      progress_.note(fmt::format("{}: {}", run->label, message));
    } else if (!told_ && failure_.empty()) {
      const fs::path log = run->folder.root / "log.txt";
      failure_ = fmt::format("{} failed: {} (see {})", run->label, last_line(log), log.string());
      failure_code_ = code;
    }
  }

  void show() {
    const double done = share();
    std::string names;
    for (const auto& [child, running] : running_)
      names += fmt::format("{}{}", names.empty() ? "" : "; ", running.run->label);
    if (names.empty()) names = "run by other processes";
    progress_.show(fmt::format("{} {:.0f}% of {} runs  {} left  ({})", bar(done), 100 * done, runs_.size(),
                               clock_.left(scaled(done), kScale), names));
  }

  void throw_if_unfinished() const {
    if (!failure_.empty()) {
      const bool ours = failure_code_ > 0 && failure_code_ <= static_cast<int>(ExitCode::kDiverged);
      throw Error(ours ? static_cast<ExitCode>(failure_code_) : ExitCode::kFailure, failure_);
    }
    if (interrupted())
      throw Error(ExitCode::kInterrupted, "interrupted; every run is saved, the same command continues");
    if (std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return !run.finished(); })) {
      throw Error(
          ExitCode::kInterrupted,
          fmt::format("{:g} minutes are over; every run is saved, the same command continues", options_.minutes));
    }
  }

  const std::vector<Run>& runs_;
  const RunOptions& options_;
  const Clock clock_;
  Progress progress_;
  std::vector<const Run*> waiting_;
  std::map<pid_t, Running> running_;
  std::string failure_;
  int failure_code_ = 0;
  bool told_ = false;  // the processes were told to stop
};

}  // namespace

void run_all(const std::vector<Run>& runs, const RunOptions& options) { Runner(runs, options).run(); }

}  // namespace strata
