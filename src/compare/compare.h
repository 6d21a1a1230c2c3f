// Several attentions over several seeds, with the same data, order, budget and hyperparameters: runs, scores and tests.
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
  bool has_rate = false;  // a learning rate of its own
};
std::vector<Variant> parse_variants(const std::vector<std::string>& names, const RunConfig& base);

struct CompareOptions {
  std::vector<std::string> attentions = {"flat", "hkt", "hsa"};
  int64_t seeds = 3, jobs = 0;
  std::vector<std::string> search_rates;  // learning rates to choose from (compare/search.h); empty: no search
  double search_part = 0.5;               // of a run's steps, that a run of the search takes
  double minutes = 0;                     // after which runs are saved and stopped; 0: never
  bool quiet = false;
  bool allow_changed_data = false;  // go on if the data is not what finished or stopped runs recorded
};
void declare(OptionTable& table, CompareOptions& options);

// Runs what is not finished yet, `jobs` processes at a time (each `program train --resume FOLDER`), and returns the
// content of results.json. Any number of processes, of machines that share the folder, may do this at the same time:
// each takes runs that no other one has, and returns when all are finished. Throws as train() does, and as interrupted
// when the minutes are over; a later call with the same options continues.
Json compare(const RunConfig& base, const CompareOptions& options, const fs::path& folder, const std::string& program);

// The folder of the run of an attention ("hkt:levels=2") and a seed.
fs::path run_folder(const fs::path& folder, const std::string& attention, int64_t seed);

struct AttentionSummary {
  std::string name;
  std::vector<double> scores;  // per seed: test accuracy in percent, or bits per byte of a language model
  double parameters = 0, score_ratio = 1, step_milliseconds = 0;
  std::vector<double> valid = {};  // like scores, on the validation rows, by which the best checkpoint is chosen
  std::vector<Json> parts = {};    // per seed, of a language model: its test by place or distance, as in result.json
};
// Means, deviations and paired tests, as results.json has them. measure: "test accuracy, %" or "test bits per byte".
Json summarize(const std::vector<AttentionSummary>& attentions, const std::string& measure, bool lower_is_better);
// One line per pair: which attention is better, by how much, and the test. Of many pairs, those with the first
// attention, and a line about the others.
std::vector<std::string> verdicts(const Json& results);

}  // namespace strata
