#include <fmt/format.h>

#include "bind.h"
#include "commands.h"

namespace strata {

void add_help_command(CLI::App& app) {
  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand("help", "Show the help of a command, as its --help does");
  command->add_option("command", *words, "A command, and a command of it")->type_name("COMMAND");
  command->callback([&app, words] {
    const CLI::App* found = &app;
    std::string path;
    for (const std::string& word : *words) {
      const CLI::App& next = find_command(*found, word);
      path += (path.empty() ? "" : " ") + found->get_name();
      found = &next;
    }
    // The application would give the help of the command that is running, which is this one.
    fmt::print("{}", found == &app ? app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal)
                                   : found->help(path));
  });
}

}  // namespace strata
