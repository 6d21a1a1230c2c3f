#include "compare/record.h"

#include <algorithm>

#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace strata {

Json record_of(const RunConfig& config) {
  RunConfig copy = config;
  copy.model = resolved(copy.model);
  OptionTable table;
  declare(table, copy);
  return table.record();
}

Json record_of_runs(const std::vector<Run>& runs) {
  Json record = {{"command", "compare"},
                 {"data", Json()},
                 {"computed_on", Json::array()},
                 {"started", Json()},
                 {"finished", Json()}};
  for (const Run& run : runs) {
    const Json one = parse_json<Json>(read_file(run.folder.run()));
    if (!one.is_object() || !one.contains("versions") || !one.contains("machine")) continue;  // of an older version
    if (record["data"].is_null()) record["data"] = one.value("data", Json());
    const Json where = {{"versions", one["versions"]}, {"machine", one["machine"]}};
    Json& all = record["computed_on"];
    if (std::find(all.begin(), all.end(), where) == all.end()) all.push_back(where);
    auto keep = [&](const char* key, auto better) {  // times in ISO 8601 sort as words
      if (one.contains(key) && one[key].is_string() &&
          (record[key].is_null() || better(one[key].get<std::string>(), record[key])))
        record[key] = one[key];
    };
    keep("started", std::less<std::string>());
    keep("finished", std::greater<std::string>());
  }
  return record;
}

void claim_folder(const fs::path& folder, const Json& plan) {
  const fs::path path = folder / "compare.json";
  if (!fs::exists(path)) return write_json(path, plan);
  Json there = parse_json<Json>(read_file(path));
  if (there.is_object() && there.contains("options") && there["options"].is_object()) {
    // An option that did not exist then had its default.
    const Json defaults = record_of(RunConfig());
    for (const auto& [key, value] : defaults.items()) {
      if (!there["options"].contains(key)) there["options"][key] = value;
    }
  }
  if (nlohmann::json(there) == nlohmann::json(plan)) return;  // in any order of the options
  std::string what = "its plan is damaged";
  if (there.is_object()) {
    const Json before = there.flatten(), now = plan.flatten();
    Json all = before;  // and what only one of them has
    all.update(now);
    auto text = [](const Json& plan, const std::string& key) {
      return plan.contains(key) ? shown(plan[key].dump()) : "missing";
    };
    for (const auto& item : all.items()) {
      const std::string& key = item.key();
      if (before.contains(key) && now.contains(key) && before[key] == now[key]) continue;
      what = fmt::format("{} is {} there and {} here", key, text(before, key), text(now, key));
      break;
    }
  }
  throw output_error("{}: already holds another comparison ({}); choose another --folder", folder.string(), what);
}

}  // namespace strata
