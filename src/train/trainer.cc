#include "train/trainer.h"

#include "model/system.h"
#include "train/record.h"
#include "train/training.h"
#include "util/error.h"

namespace strata {

Json train(const RunConfig& config, const RunFolder& folder, bool resume, bool quiet, const EpochTracker& tracker) {
  make_folder(folder.root);
  const FolderLock lock(folder.root);
  RunConfig copy = config;
  OptionTable table;
  declare(table, copy);
  const bool started = fs::exists(folder.run());
  if (started && !resume) {
    throw output_error("{}: already holds a run; continue it with --resume {}, or choose another --folder",
                       folder.root.string(), folder.root.string());
  }
  if (fs::exists(folder.result())) return Json::parse(read_file(folder.result()));
  set_threads(config.train.threads);
  Training training(config, folder, quiet, tracker);
  // Not before: a run that cannot start leaves no run.json.
  Json record = started ? read_run(folder) : Json();
  if (!record.contains("versions")) {  // `strata compare` writes only the options
    record = start_record("train", table.record(), config.train.device, training.data_files());
  } else {
    record["resumed"].push_back(
        {{"at", utc_now()}, {"versions", versions()}, {"machine", machine(config.train.device)}});
  }
  write_json(folder.run(), record);
  Json result = training.run(resume);
  write_json(folder.run(), finish_record(record));
  write_json(folder.result(), result);
  return result;
}

}  // namespace strata
