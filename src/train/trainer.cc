#include "train/trainer.h"

#include "model/system.h"
#include "train/record.h"
#include "train/same_data.h"
#include "train/training.h"
#include "util/atomic_file.h"
#include "util/digest.h"
#include "util/error.h"

namespace strata {

namespace {

// What a record says: a relative path would mean another file in another working directory.
RunConfig recorded_config(RunConfig config) {
  config.model = resolved(config.model);
  if (!config.data.data.empty()) config.data.data = fs::absolute(config.data.data).lexically_normal().string();
  return config;
}

Json options_of(const RunConfig& config) {
  RunConfig copy = config;
  OptionTable table;
  declare(table, copy);
  return table.record();
}

// The record of a run that starts, or goes on with the same data.
Json make_record(const RunConfig& config, const RunFolder& folder, const std::vector<fs::path>& files, bool started,
                 bool allow_changed_data) {
  Json record = started ? read_run(folder) : Json();
  Json data = describe_files(files);
  if (!record.contains("versions"))  // `strata compare` writes only the options
    return start_record("train", options_of(config), config.train.device, std::move(data));
  const Json recorded = record.value("data", Json());
  check_same_data(recorded, data, allow_changed_data);
  Json entry = {{"at", utc_now()}, {"versions", versions()}, {"machine", machine(config.train.device)}};
  if (!data_changes(recorded, data).empty()) entry["data_before"] = recorded;
  if (!record["resumed"].is_array()) record["resumed"] = Json::array();  // the first time, or a damaged record
  record["resumed"].push_back(std::move(entry));
  record["data"] = std::move(data);
  return record;
}

}  // namespace

Json train(const RunConfig& given, const RunFolder& folder, const TrainCall& call) {
  make_folder(folder.root);
  const FolderLock lock(folder.root);
  remove_stray_parts(folder.root.string());
  const RunConfig config = recorded_config(given);
  const bool started = fs::exists(folder.run());
  if (started && !call.resume) {
    throw output_error("{}: already holds a run; continue it with --resume {}, or choose another --folder",
                       folder.root.string(), folder.root.string());
  }
  if (fs::exists(folder.result())) return read_result(folder);
  set_threads(config.train.threads);
  Training training(config, folder, call.quiet, call.tracker);
  // Not before: a run that cannot start leaves no run.json.
  const Json record = make_record(config, folder, training.data_files(), started, call.allow_changed_data);
  write_json(folder.run(), record);
  Json result = training.run(call.resume);
  write_json(folder.run(), finish_record(record));
  write_json(folder.result(), result);
  return result;
}

}  // namespace strata
