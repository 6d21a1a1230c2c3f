#include "train/record.h"

#include <fmt/chrono.h>

#include <ctime>
#include <thread>

#include "model/system.h"
#include "strata/host.h"
#include "torch/run_on_device.h"
#include "util/digest.h"

namespace strata {

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

Json machine(const std::string& device) {
  return {{"cpu", host_cpu().name},
          {"cores", std::thread::hardware_concurrency()},
          {"openblas", openblas_core()},
          {"device", device == "cuda" ? gpu_name() : device}};
}

Json start_record(const std::string& command, const Json& options, const std::string& device,
                  const std::vector<fs::path>& data) {
  return start_record(command, options, device, describe_files(data));
}

Json start_record(const std::string& command, const Json& options, const std::string& device, Json described) {
  return {{"command", command},         {"options", options},           {"versions", versions()},
          {"machine", machine(device)}, {"data", std::move(described)}, {"started", utc_now()}};
}

Json model_options(const std::string& model, const OptionTable& own, const DataConfig& data) {
  DataConfig copy = data;
  OptionTable table;
  declare(table, copy);
  Json options = {{"model", model}};
  options.update(own.record());
  options["data"] = table.record();
  return options;
}

Json finish_record(Json record) {
  record["finished"] = utc_now();
  return record;
}

}  // namespace strata
