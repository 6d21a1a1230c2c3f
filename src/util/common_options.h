// Options that several commands have, each declared here alone.
#pragma once

#include "util/options.h"

namespace strata {

void declare_threads(OptionTable& table, int64_t& threads);
void declare_quiet(OptionTable& table, bool& quiet);
void declare_json(OptionTable& table, bool& json);
// --output: a JSON file, and a page beside it. otherwise: where they go without the option, for the help
void declare_output(OptionTable& table, std::string& path, const std::string& otherwise);
void check_output(const std::string& path);  // throws a usage error if it names a page
// --allow-changed-data, for commands that read the data of a run again.
void declare_changed_data(OptionTable& table, bool& allowed);
// --no-check-digest, for commands that read weights.
void declare_check_digest(OptionTable& table, bool& check);
void declare_split(OptionTable& table, std::string& split, bool whole = false);  // whole: also "all"

}  // namespace strata
