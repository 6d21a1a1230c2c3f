// Reports: the JSON files of a folder as self-contained HTML files (no network, no torch).
#pragma once

#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

struct Report {
  fs::path path;
  std::vector<std::string> problems;  // parts that are missing or damaged, named in the page as well
};

// Prints a warning for every problem. For commands that have just written what the page shows.
void warn_of_problems(const Report& report);

// The report of `strata inspect`, in the same folder: inspect.json -> inspect.html. In a run's folder it also shows the
// course of the training.
Report write_inspect_report(const fs::path& json);

// The report of `strata inject`: inject.json -> inject.html.
Report write_inject_report(const fs::path& json);

// The report of `strata eval --output`: FILE.json -> FILE.html.
Report write_eval_report(const fs::path& json);

// The report of `strata bench --json`: FILE.json -> FILE.html.
Report write_bench_report(const fs::path& json);

// The report of a run's folder (run.json) or of a comparison's (compare.json): report.html.
Report write_train_report(const fs::path& folder);
Report write_compare_report(const fs::path& folder);

// All reports that the folder has data for. Throws an output error if there are none.
std::vector<Report> write_reports(const fs::path& folder);

}  // namespace strata
