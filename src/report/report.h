// Reports for people: what a folder's JSON files hold, as HTML files that need nothing else (no network, no torch).
#pragma once

#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

struct Report {
  fs::path path;
  std::vector<std::string> problems;  // parts that are missing or damaged, named in the page as well
};

// Of what `strata inspect` wrote: a page beside it, inspect.json -> inspect.html. In a run's folder the course of the
// training is in it, too.
Report write_inspect_report(const fs::path& json);

// Of what `strata inject` wrote: inject.json -> inject.html.
Report write_inject_report(const fs::path& json);

// Of a run's folder (run.json), or a comparison's (compare.json): report.html.
Report write_train_report(const fs::path& folder);
Report write_compare_report(const fs::path& folder);

// All that the folder has something for. Throws an output error when that is nothing.
std::vector<Report> write_reports(const fs::path& folder);

}  // namespace strata
