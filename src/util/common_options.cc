#include "util/common_options.h"

#include "util/error.h"

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

void declare_output(OptionTable& table, std::string& path, const std::string& otherwise) {
  table.begin_group("Output");
  table.add("output", &path,
            {.help = "Write the result to this JSON file, and a page beside it; " + otherwise,
             .type = "FILE",
             .recorded = false});
}

void check_output(const std::string& path) {
  if (fs::path(path).extension() == ".html")
    throw usage_error("--output: expected the name of a JSON file, got {}; the page is written beside it", path);
}

void declare_changed_data(OptionTable& table, bool& allowed) {
  table.begin_group("Running");
  table.add("allow_changed_data", &allowed,
            {.help = "Go on if the data of the run has changed since it was recorded", .recorded = false});
}

void declare_check_digest(OptionTable& table, bool& check) {
  table.begin_group("Running");
  table.add("check_digest", &check,
            {.help = "Refuse weights that differ from the SHA-256 in their file", .recorded = false});
}

void declare_split(OptionTable& table, std::string& split, bool whole) {
  OptionNote note = {.help = "Rows to read", .choices = {"train", "valid", "test"}};
  if (whole) {
    note.help += "; all by default with --data, test otherwise";
    note.choices.push_back("all");
  }
  table.add("split", &split, note);
}

}  // namespace strata
