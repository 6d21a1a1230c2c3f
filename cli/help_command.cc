#include <fmt/format.h>

#include "commands.h"
#include "util/error.h"
#include "util/options.h"
#include "util/text.h"

namespace strata {

void add_help_command(CLI::App& app) {
  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand("help", "Show the help of a command, as its --help does");
  command->add_option("command", *words, "A command, and a command of it")->type_name("COMMAND");
  command->callback([&app, words] {
    const CLI::App* found = &app;
    std::string path;
    for (const std::string& word : *words) {
      std::vector<std::string> names;
      const CLI::App* next = nullptr;
      for (const CLI::App* one : found->get_subcommands([](const CLI::App*) { return true; })) {
        names.push_back(one->get_name());
        if (one->get_name() == word) next = one;
      }
      if (next == nullptr)
        throw usage_error("{}: unknown command{}; {}", shown(word), suggestion(word, names),
                          names.empty() ? fmt::format("{} has no commands of its own", found->get_name())
                                        : fmt::format("the commands are {}", fmt::join(names, ", ")));
      path += (path.empty() ? "" : " ") + found->get_name();
      found = next;
    }
    // The application would give the help of the command that is running, which is this one.
    fmt::print("{}", found == &app ? app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal)
                                   : found->help(path));
  });
}

}  // namespace strata
