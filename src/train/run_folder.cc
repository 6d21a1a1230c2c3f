#include "train/run_folder.h"

#include "util/error.h"

namespace strata {

Json read_run(const RunFolder& folder) {
  if (!fs::exists(folder.run())) {
    throw output_error("{}: expected the folder of a run, with a file run.json", folder.root.string());
  }
  Json run = Json::parse(read_file(folder.run()), nullptr, false);
  if (!run.is_object() || !run.contains("options"))
    throw output_error("{}: expected a JSON object with the options of a run; the file is damaged",
                       folder.run().string());
  return run;
}

RunConfig read_run_config(const RunFolder& folder) {
  RunConfig config;
  OptionTable table;
  declare(table, config);
  table.restore(read_run(folder)["options"], folder.run().string());
  return config;
}

}  // namespace strata
