// From option tables to command lines.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

struct Binding {
  std::set<std::string> except = {};          // options that get no flag
  std::vector<std::string>* words = nullptr;  // takes the words that belong to no option; null: they are refused
  bool has_model = false;                     // whose task it is, so that options of one task wait for the model
};

// Makes a flag of every option of the table, and `--config FILE`, whose options are taken where the command line has
// none. When the command is parsed, all options are set and checked, then `run` is called. The table must not move.
void bind_command(CLI::App& command, OptionTable& table, std::function<void()> run, const Binding& binding = {});

// The command of that name directly below another one. Throws a usage error that names the nearest.
const CLI::App& find_command(const CLI::App& above, const std::string& word);
std::vector<const CLI::App*> commands_below(const CLI::App& above);

std::string examples(const std::string& lines);  // a footer for the help

}  // namespace strata
