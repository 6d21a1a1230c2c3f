// The runs of a comparison, each a process `strata train --resume FOLDER`.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "train/run_folder.h"

namespace strata {

struct Run {
  std::string label;  // "hkt, seed 2"
  RunFolder folder;
  RunConfig config;
  fs::path diverged() const { return folder.root / "diverged.json"; }  // written when it has, and that is no error
  bool finished() const { return fs::exists(folder.result()) || fs::exists(diverged()); }
  double share() const;  // of its steps that are done
};

// How runs of a task are scored: test accuracy in percent, or bits per byte of a language model.
// "test accuracy, %", "validation bits per byte"
std::string measure_of(const std::string& task, const std::string& split = "test");
double score_of(const Json& result, const char* split = "test");
bool lower_is_better(const std::string& task);

struct RunOptions {
  int64_t jobs = 1;    // processes at the same time
  double minutes = 0;  // after which the runs are saved and stopped; 0: never
  bool quiet = false;
  bool allow_changed_data = false;
  std::string program;     // strata
  bool searching = false;  // validation counts, and a run that diverges is finished
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();  // from which the minutes count
};

// Starts the runs that no other process has claimed, by a lock on the file .claim in their folder, which ends with its
// process. Returns when all runs are finished, by whomever. Throws when one fails, the minutes are over, or the user
// interrupts.
void run_all(const std::vector<Run>& runs, const RunOptions& options);

}  // namespace strata
