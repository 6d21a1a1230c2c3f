// Options that several commands have, each declared here alone.
#pragma once

#include "util/options.h"

namespace strata {

void declare_threads(OptionTable& table, int64_t& threads);
void declare_quiet(OptionTable& table, bool& quiet);
void declare_json(OptionTable& table, bool& json);
void declare_split(OptionTable& table, std::string& split);

}  // namespace strata
