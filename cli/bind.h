// From option tables to command lines.
#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>

#include "util/options.h"

namespace strata {

// Every option of the table becomes a flag, but for those named in `except`. The table must stay where it is.
void bind_options(CLI::App& command, OptionTable& table, const std::set<std::string>& except = {});

// `--config FILE`, whose options are taken where the command line has none.
void bind_config(CLI::App& command, std::string& path);
void apply_config(OptionTable& table, const std::string& path);

// Refuses words and flags that mean nothing, with the nearest flag. Call it first in a callback.
void refuse_extras(const CLI::App& command);

std::string examples(const std::string& lines);  // a footer for the help

}  // namespace strata
