#include "util/common_options.h"

namespace strata {

void declare_threads(OptionTable& table, int64_t& threads) {
  table.begin_group("Running");
  table.add("threads", &threads, {.help = "CPU threads; 0: all cores", .min = 0, .max = 4096});
}

void declare_quiet(OptionTable& table, bool& quiet) {
  table.begin_group("Output");
  table.add("quiet", &quiet, {.help = "Print no progress", .recorded = false});
}

void declare_json(OptionTable& table, bool& json) {
  table.begin_group("Output");
  table.add("json", &json, {.help = "Print the result as JSON", .recorded = false});
}

void declare_split(OptionTable& table, std::string& split) {
  table.add("split", &split, {.help = "Rows to read", .choices = {"train", "valid", "test"}});
}

}  // namespace strata
