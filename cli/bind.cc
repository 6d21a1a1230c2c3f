#include "bind.h"

#include "util/error.h"
#include "util/text.h"

namespace strata {
namespace {

std::string help_of(const Option& option) {
  std::string help = option.note.help;
  if (!option.note.task.empty()) help += " (" + option.note.task + ")";
  const Json value = option.value();
  if (value.is_boolean()) return help;
  std::string initial = value.is_string() ? value.get<std::string>() : value.dump();
  if (const auto* words = std::get_if<std::vector<std::string>*>(&option.target)) {
    initial = fmt::format("{}", fmt::join(**words, " "));
  } else if (const auto* numbers = std::get_if<std::vector<int64_t>*>(&option.target)) {
    initial = fmt::format("{}", fmt::join(**numbers, ","));
  }
  return initial.empty() ? help : help + " [" + initial + "]";
}

// --NAME and --no-NAME. The help shows the one that changes the default.
void bind_switch(CLI::App& command, const Option& option, const std::function<void(const std::string&)>& set) {
  const std::string help = help_of(option), flag = option.flag();
  const bool on = option.value().get<bool>();
  command
      .add_flag_callback(
          flag, [set] { set("true"); }, help)
      ->group(on ? "" : option.group);
  command
      .add_flag_callback(
          "--no-" + flag.substr(2), [set] { set("false"); }, "Turn off: " + help)
      ->group(on ? option.group : "");
}

void bind_option(CLI::App& command, OptionTable& table, Option& option) {
  auto set = [&table, &option](const std::vector<std::string>& words) { table.set(option, words, option.flag()); };
  if (std::holds_alternative<bool*>(option.target))
    return bind_switch(command, option, [set](const std::string& word) { set({word}); });
  CLI::Option* flag = command.add_option_function<std::vector<std::string>>(option.flag(), set, help_of(option));
  flag->group(option.group)->type_name(option.type_name());
  if (std::holds_alternative<std::vector<std::string>*>(option.target)) {
    flag->expected(1, -1)->allow_extra_args(!option.note.repeated);
  } else {  // without extra arguments, CLI11 does not split a word in square brackets
    flag->expected(1)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
}

// Words and flags that are not known: refused with the nearest flag, or handed over if they are words.
void take_extras(const CLI::App& command, std::vector<std::string>* words) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  for (const std::string& extra : command.remaining()) {
    if (words == nullptr || extra.rfind("--", 0) == 0)
      throw usage_error("{}: not an option of {}{}", shown(extra), command.get_name(), suggestion(extra, flags));
    words->push_back(extra);
  }
}

}  // namespace

void bind_command(CLI::App& command, OptionTable& table, std::function<void()> run, const Binding& binding) {
  for (Option& option : table.options()) {
    if (binding.except.count(option.name) == 0) bind_option(command, table, option);
  }
  auto config = std::make_shared<std::string>();
  command.add_option("--config", *config, "Options from a TOML or JSON file; flags override it")->type_name("FILE");
  command.allow_extras();
  command.callback([&command, &table, run = std::move(run), config, binding] {
    take_extras(command, binding.words);
    if (!config->empty()) table.load_config(*config);
    const Option* const task = binding.has_model ? nullptr : table.find("task");
    if (task != nullptr) table.check_task(*std::get<std::string*>(task->target));
    run();
  });
}

std::vector<const CLI::App*> commands_below(const CLI::App& above) {
  return above.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App& find_command(const CLI::App& above, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_below(above)) {
    if (command->get_name() == word) return *command;
    names.push_back(command->get_name());
  }
  throw usage_error("{}: unknown command{}; {}", shown(word), suggestion(word, names),
                    names.empty() ? fmt::format("{} has no commands of its own", above.get_name())
                                  : fmt::format("the commands are {}", fmt::join(names, ", ")));
}

std::string examples(const std::string& lines) { return "Examples:\n" + lines; }

}  // namespace strata
