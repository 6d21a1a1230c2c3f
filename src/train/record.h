// What a command leaves behind about itself: options, versions, machine, data, start and end. train and compare keep it
// as run.json and under "record" in results.json; inspect, inject and eval under "record" of their JSON.
#pragma once

#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

// {"command", "options", "versions", "machine", "data", "started"}. Reads every file for its digest.
Json start_record(const std::string& command, const Json& options, const std::string& device,
                  const std::vector<fs::path>& data);
// Adds "finished".
Json finish_record(Json record);

Json machine(const std::string& device);  // {"cpu", "cores", "openblas", "device"}
std::string utc_now();                    // 2026-11-16T09:00:00Z

}  // namespace strata
