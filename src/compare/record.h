// What a comparison leaves about itself: its plan, and the record of its runs.
#pragma once

#include <vector>

#include "compare/runs.h"

namespace strata {

// The options of a run, with those that an attention brings.
Json record_of(const RunConfig& config);

// One record for all runs: the start of the first, the end of the last, the data, and every combination of versions and
// machine.
Json record_of_runs(const std::vector<Run>& runs);

// Writes compare.json. Refuses a folder that holds another comparison, and names the first option that differs.
void claim_folder(const fs::path& folder, const Json& plan);

}  // namespace strata
