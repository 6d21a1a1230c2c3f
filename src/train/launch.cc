#include "train/launch.h"

#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "train/child.h"
#include "train/peer_watch.h"
#include "util/error.h"
#include "util/file.h"
#include "util/interrupt.h"

namespace strata {
namespace {

constexpr const char* kLaunched = "STRATA_LAUNCHED";

std::vector<std::string> own_arguments() {
  std::vector<std::string> arguments;
  const std::string text = read_file("/proc/self/cmdline");
  for (size_t at = 0; at < text.size();) {
    arguments.emplace_back(text.c_str() + at);
    at += arguments.back().size() + 1;
  }
  return arguments;
}

pid_t start(int64_t rank, int64_t count, int64_t port, std::vector<std::string>& arguments) {
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const std::string number = std::to_string(rank), all = std::to_string(count), place = std::to_string(port);
  const pid_t child = fork();
  if (child == 0) {
    settle_child();
    for (const char* name : {"RANK", "LOCAL_RANK"}) setenv(name, number.c_str(), 1);
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) setenv(name, all.c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", place.c_str(), 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv(kLaunched, "1", 1);
    setenv("GLOG_minloglevel", "3", 0);  // see cli/main.cc
    setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
    execv("/proc/self/exe", words.data());
    _exit(127);
  }
  if (child < 0) throw Error(ExitCode::kFailure, fmt::format("could not start process {} of {}", rank, count));
  return child;
}

class Processes {
 public:
  Processes(int64_t count, std::vector<std::string> arguments) {
    const auto server = open_store({"127.0.0.1", 0, ""}, true, Milliseconds(30000));
    store_ = c10::make_intrusive<c10d::PrefixStore>("strata/0", server);
    for (int64_t rank = 0; rank < count; ++rank) running_[start(rank, count, server->getPort(), arguments)] = rank;
  }

  void run() {
    while (!running_.empty()) {
      if (interrupted() && !told_) {
        for (const auto& [child, rank] : running_) kill(child, SIGTERM);
        told_ = true;
      }
      int status = 0;
      for (pid_t child = waitpid(-1, &status, WNOHANG); child > 0; child = waitpid(-1, &status, WNOHANG))
        end(child, status);
      if (code_ != 0 && Clock::now() - failed_ > kGrace) {
        for (const auto& [child, rank] : running_) kill(child, SIGKILL);  // one that was stopped, for example
      }
      std::this_thread::sleep_for(Milliseconds(20));
    }
    if (code_ == 0) return;
    const bool interrupted = code_ == static_cast<int>(ExitCode::kInterrupted);  // rank 0 has said so
    throw Error(static_cast<ExitCode>(code_), !interrupted && say_failure(*store_, message_) ? message_ : "");
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kGrace{5};  // the others find the reason in the store at once

  void end(pid_t child, int status) {
    const int64_t rank = running_[child];
    running_.erase(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (code_ != 0) return;
    failed_ = Clock::now();
    if (WIFEXITED(status)) {
      code_ = WEXITSTATUS(status);
      // It has told why, or another rank has.
      message_ = peek_text(*store_, kFailureKey);
      if (message_.empty()) message_ = fmt::format("rank {} ended with exit code {}", rank, code_);
      return;
    }
    code_ = static_cast<int>(ExitCode::kFailure);
    message_ = fmt::format("rank {} (process {}) was killed by signal {} ({})", rank, child, WTERMSIG(status),
                           strsignal(WTERMSIG(status)));
    message_ = put_first_text(*store_, kFailureKey, message_);
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::map<pid_t, int64_t> running_;  // to ranks
  int code_ = 0;                      // of the first that failed
  Clock::time_point failed_;
  std::string message_;
  bool told_ = false;  // the processes were told to stop
};

}  // namespace

bool is_launched() { return std::getenv(kLaunched) != nullptr; }

void launch_processes(int64_t count, std::vector<std::string> arguments) {
  Processes(count, arguments.empty() ? own_arguments() : std::move(arguments)).run();
}

}  // namespace strata
