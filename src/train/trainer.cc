#include "train/trainer.h"

#include <optional>
#include <thread>

#include "model/system.h"
#include "train/distributed.h"
#include "train/record.h"
#include "train/same_data.h"
#include "train/training.h"
#include "util/atomic_file.h"
#include "util/digest.h"
#include "util/error.h"

namespace strata {

namespace {

RunConfig recorded_config(RunConfig config) {
  config.model = resolved(config.model);
  config.data = with_absolute_paths(config.data);
  return config;
}

Json options_of(const RunConfig& config) {
  RunConfig copy = config;
  OptionTable table;
  declare(table, copy);
  return table.record();
}

// The record of a run that starts, or goes on with the same data.
Json make_record(const RunConfig& config, const RunFolder& folder, Json data, bool started, bool allow_changed_data,
                 int64_t processes) {
  Json record = started ? read_run(folder) : Json();
  if (!record.contains("versions")) {  // `strata compare` writes only the options
    record = start_record("train", options_of(config), config.train.device, std::move(data));
    if (processes > 1) record["processes"] = processes;
    return record;
  }
  const Json recorded = record.value("data", Json());
  check_same_data(recorded, data, allow_changed_data);
  Json entry = {{"at", utc_now()}, {"versions", versions()}, {"machine", machine(config.train.device)}};
  if (processes > 1) entry["processes"] = processes;
  if (!data_changes(recorded, data).empty()) entry["data_before"] = recorded;
  if (!record["resumed"].is_array()) record["resumed"] = Json::array();  // the first time, or a damaged record
  record["resumed"].push_back(std::move(entry));
  record["data"] = std::move(data);
  return record;
}

// What the process that uses the folder finds there.
struct Start {
  bool started = false, resume = false;
  Json result;  // of a finished run

  Start(const RunConfig& config, const RunFolder& folder, const TrainCall& call, bool restarted) {
    started = fs::exists(folder.run());
    resume = call.resume || (started && restarted);
    if (started && !resume)
      throw output_error("{}: already holds a run; continue it with --resume {}, or choose another --folder",
                         folder.root.string(), folder.root.string());
    // torchrun starts the same command again, without --resume.
    if (resume && !call.resume && options_of(recorded_config(read_run_config(folder))) != options_of(config))
      throw output_error("{}: already holds a run with other options; choose another --folder", folder.root.string());
    if (fs::exists(folder.result())) result = read_result(folder);
  }
  explicit Start(const Json& told) : resume(told.at("resume").get<bool>()), result(told.at("result")) {}
  Json to_json() const { return {{"resume", resume}, {"result", result}}; }
};

int64_t threads_of(const RunConfig& config, const Group* group) {
  if (config.train.threads > 0 || group == nullptr) return config.train.threads;
  return std::max<int64_t>(1, std::thread::hardware_concurrency() / group->place().local_size);
}

// The data as all ranks must have it, wherever it lies.
Json without_paths(Json files) {
  for (Json& file : files) file.erase("path");
  return files;
}

Json train_in(const RunConfig& given, const RunFolder& folder, const TrainCall& call, Group* group) {
  const bool writer = group == nullptr || group->is_writer();
  std::optional<FolderLock> lock;
  if (writer) {
    make_folder(folder.root);
    lock.emplace(folder.root);
    remove_stray_parts(folder.root.string());
  }
  const RunConfig config = recorded_config(given);
  std::optional<Start> start;
  if (writer) start.emplace(config, folder, call, group != nullptr && group->place().restarts > 0);
  if (group != nullptr) {
    const std::string told = group->tell(writer ? start->to_json().dump() : "");
    if (!writer) start.emplace(Json::parse(told));
  }
  if (!start->result.is_null()) return start->result;
  set_threads(threads_of(config, group));
  Training training(config, folder, call.quiet || !writer, call.tracker, group, call.shard_optimizer);
  const Json data = describe_files(training.data_files());
  if (group != nullptr) {
    Json facts = {{"versions", versions()}, {"data", without_paths(data)}};
    facts.update(training.facts());
    group->compare(facts);
  }
  // Not before: a run that cannot start leaves no run.json.
  Json record;
  if (writer) {
    record = make_record(config, folder, data, start->started, call.allow_changed_data,
                         group == nullptr ? 1 : group->size());
    write_json(folder.run(), record);
  }
  Json result = training.run(start->resume);
  if (writer) {
    write_json(folder.run(), finish_record(record));
    write_json(folder.result(), result);
  }
  return result;
}

}  // namespace

Json train(const RunConfig& config, const RunFolder& folder, const TrainCall& call) {
  const std::optional<Placement> place = find_placement();
  if (!place.has_value()) return train_in(config, folder, call, nullptr);
  Group group(*place, config.train.device == "cuda" ? torch::kCUDA : torch::kCPU, call.timeout);
  try {
    Json result = train_in(config, folder, call, &group);
    group.leave();
    return result;
  } catch (const Error& error) {
    throw group.stop(error);
  } catch (const std::exception& error) {
    (void)group.stop({ExitCode::kFailure, std::string(error.what()).substr(0, std::string(error.what()).find('\n'))});
    throw;
  }
}

}  // namespace strata
