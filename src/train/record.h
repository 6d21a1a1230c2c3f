// The record of a command: options, versions, machine, data, start and end. train writes it as run.json; all other
// commands write it under "record" of their JSON.
#pragma once

#include <string>
#include <vector>

#include "data/config.h"

namespace strata {

// {"command", "options", "versions", "machine", "data", "started"}. Reads every file for its digest, unless the files
// are already described (util/digest.h).
Json start_record(const std::string& command, const Json& options, const std::string& device,
                  const std::vector<fs::path>& data);
Json start_record(const std::string& command, const Json& options, const std::string& device, Json described);
// Adds "finished": the end time.
Json finish_record(Json record);

// The options of a command on a trained model: the model, its own options, and those of the data under "data".
Json model_options(const std::string& model, const OptionTable& own, const DataConfig& data);

Json machine(const std::string& device);  // {"cpu", "cores", "openblas", "device"}
std::string utc_now();                    // 2026-11-16T09:00:00Z

}  // namespace strata
