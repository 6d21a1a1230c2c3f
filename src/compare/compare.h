// Several attentions, several seeds, the same data, order, budget and hyperparameters: run, gathered and tested.
#pragma once

#include <string>
#include <vector>

#include "train/config.h"
#include "util/statistics.h"

namespace strata {

// An attention with options of its own: "hkt", "hkt:levels=2", "hsa:tree=balanced:branching=4".
struct Variant {
  std::string name;  // as given
  RunConfig config;
};
std::vector<Variant> parse_variants(const std::vector<std::string>& names, const RunConfig& base);

struct CompareOptions {
  std::vector<std::string> attentions = {"flat", "hkt", "hsa"};
  int64_t seeds = 3, jobs = 0;
  double minutes = 0;  // after which runs are saved and stopped; 0: never
  bool quiet = false;
};

// Runs what is not finished yet, `jobs` processes at a time (each `program train --resume FOLDER`), and returns what
// results.json holds. Throws as train() does, and as interrupted when the minutes are over; a later call with the same
// options goes on.
Json compare(const RunConfig& base, const CompareOptions& options, const fs::path& folder, const std::string& program);

// Where the run of an attention ("hkt:levels=2") and a seed is kept.
fs::path run_folder(const fs::path& folder, const std::string& attention, int64_t seed);

// ---- from results to tables

struct AttentionSummary {
  std::string name;
  std::vector<double> scores;  // per seed: test accuracy in percent, or bits per byte of a language model
  double parameters = 0, score_ratio = 1, step_milliseconds = 0;
  std::vector<double> valid = {};  // like scores, on the validation rows, by which the best checkpoint is chosen
};
// What is compared: "test accuracy, %" or "test bits per byte".
Json summarize(const std::vector<AttentionSummary>& attentions, const std::string& measure, bool lower_is_better);
std::string to_markdown(const Json& results);
std::string to_csv(const Json& results);
// The lines people read: what beats what, by how much, and how sure it is.
std::vector<std::string> verdicts(const Json& results);

}  // namespace strata
