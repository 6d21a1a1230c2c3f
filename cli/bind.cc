#include "bind.h"

#include "util/error.h"

namespace strata {

void bind_options(CLI::App& command, OptionTable& table, const std::set<std::string>& except) {
  for (Option& option : table.options()) {
    if (except.count(option.name) > 0) continue;
    auto set = [&table, &option](const std::vector<std::string>& words) { table.set(option, words, option.flag()); };
    std::string help = option.note.help;
    if (!option.note.task.empty()) help += " (" + option.note.task + ")";
    const Json value = option.value();
    std::string initial = value.is_string() ? value.get<std::string>() : value.dump();
    if (const auto* words = std::get_if<std::vector<std::string>*>(&option.target)) {
      initial = fmt::format("{}", fmt::join(**words, " "));
    } else if (const auto* numbers = std::get_if<std::vector<int64_t>*>(&option.target)) {
      initial = fmt::format("{}", fmt::join(**numbers, ","));
    }
    if (!initial.empty() && !value.is_boolean()) help += " [" + initial + "]";
    const bool on = value.is_boolean() && value.get<bool>();  // what is on by default is offered as --no-NAME
    if (std::holds_alternative<bool*>(option.target)) {
      command
          .add_flag_callback(
              option.flag(), [set] { set({"true"}); }, help)
          ->group(on ? "" : option.group);
      command
          .add_flag_callback(
              "--no-" + option.flag().substr(2), [set] { set({"false"}); }, "Turn off: " + help)
          ->group(on ? option.group : "");
      continue;
    }
    CLI::Option* flag = command.add_option_function<std::vector<std::string>>(option.flag(), set, help);
    flag->group(option.group)->type_name(option.type_name());
    if (std::holds_alternative<std::vector<std::string>*>(option.target)) {
      flag->expected(1, -1);
    } else {
      flag->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
  command.allow_extras();
}

void bind_config(CLI::App& command, std::string& path) {
  command.add_option("--config", path, "Options from a TOML or JSON file; the command line goes before it")
      ->type_name("FILE");
}

void apply_config(OptionTable& table, const std::string& path) {
  if (!path.empty()) table.load_config(path);
  if (const Option* task = table.find("task")) table.check_task(*std::get<std::string*>(task->target));
}

void refuse_extras(const CLI::App& command) {
  const std::vector<std::string> extras = command.remaining();
  if (extras.empty()) return;
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  throw usage_error("{}: not an option of {}{}", extras[0], command.get_name(), suggestion(extras[0], flags));
}

std::string examples(const std::string& lines) { return "Examples:\n" + lines; }

}  // namespace strata
