#include "train/run_folder.h"

#include "util/error.h"
#include "util/json.h"

namespace strata {

Json read_run(const RunFolder& folder) {
  if (!fs::exists(folder.run())) {
    throw output_error("{}: expected the folder of a run, with a file run.json", folder.root.string());
  }
  const std::string text = read_file(folder.run());
  Json run = parse_json<Json>(text);
  if (!run.is_object() || !run.contains("options") || !run["options"].is_object())
    throw output_error("{}: expected a JSON object with the options of a run, got {}; the file is damaged",
                       folder.run().string(), run.is_object() ? "one without them" : json_kind(run, text));
  return run;
}

namespace {

void check_scores(const Json& result, const char* split) {
  for (const char* key : {"loss", "accuracy", "rows"}) (void)result.at(split).at(key).get<double>();
}

}  // namespace

Json read_result(const RunFolder& folder) {
  const std::string text = read_file(folder.result());
  Json result = parse_json<Json>(text);
  std::string damage = json_kind(result, text);
  try {
    if (result.is_object()) {
      for (const char* key : {"task", "attention"}) (void)result.at(key).get<std::string>();
      for (const char* key :
           {"seed", "steps", "parameters", "score_ratio", "train_seconds", "step_milliseconds", "best_step"})
        (void)result.at(key).get<double>();
      check_scores(result, "valid");
      check_scores(result, "test");
      return result;
    }
  } catch (const Json::exception& error) {
    damage = error.what();
  }
  throw output_error(
      "{}: expected the result of a finished run, got {}; the file is damaged. Remove it and resume the run, which "
      "tests its best model again",
      folder.result().string(), damage);
}

RunConfig read_run_config(const RunFolder& folder) {
  RunConfig config;
  OptionTable table;
  declare(table, config);
  table.restore(read_run(folder)["options"], folder.run().string());
  return config;
}

}  // namespace strata
