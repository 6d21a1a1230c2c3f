// Completion scripts for shells, written from the commands themselves, so that they know every command and option.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "bind.h"
#include "commands.h"
#include "util/error.h"
#include "util/options.h"
#include "util/text.h"

namespace strata {
namespace {

struct Flag {
  std::string name, help;
  bool value = false, file = false;
  std::vector<std::string> choices;
};

struct Command {
  std::string path, help;  // "data make"
  std::vector<Flag> flags;
  std::vector<std::string> nested;  // names of its own commands
  std::vector<std::string> words;   // what may stand behind it

  std::string name() const { return path.substr(path.rfind(' ') + 1); }
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The words of a type such as "a|b|c", or "NAME:{a,b}" as CLI11 writes it. Capitals are names of types: N, FILE.
std::vector<std::string> choices_of(const std::string& type) {
  const size_t open = type.find('{'), close = type.find('}');
  if (open < close && close != std::string::npos) return split(type.substr(open + 1, close - open - 1), ',');
  const bool named = std::none_of(type.begin(), type.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  return named ? std::vector<std::string>() : split(type, '|');
}

// The command and those below it, each with the path of the one above.
void collect(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  Command command = {path, app.get_description(), {}, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (option->get_lnames().empty()) command.words = choices_of(type);
    for (const std::string& name : option->get_lnames()) {
      command.flags.push_back({"--" + name, option->get_description(), option->get_expected_max() > 0,
                               type == "FILE" || type == "FOLDER", choices_of(type)});
    }
  }
  for (const CLI::App* one : commands_below(app)) command.nested.push_back(one->get_name());
  if (path == "help") {
    for (const CLI::App* one : commands_below(*app.get_parent())) command.words.push_back(one->get_name());
  }
  commands.push_back(command);
  for (const CLI::App* one : commands_below(app))
    collect(*one, path.empty() ? one->get_name() : path + " " + one->get_name(), commands);
}

// Those directly below a command.
std::vector<const Command*> children_of(const Command& command, const std::vector<Command>& commands) {
  std::vector<const Command*> children;
  for (const std::string& name : command.nested) {
    const std::string path = command.path.empty() ? name : command.path + " " + name;
    const auto found = std::find_if(commands.begin(), commands.end(), [&](const Command& c) { return c.path == path; });
    children.push_back(&*found);
  }
  return children;
}

std::string in_quotes(const std::string& text) {  // for a shell
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string names_of(const Command& command) {
  std::vector<std::string> names = command.nested;
  names.insert(names.end(), command.words.begin(), command.words.end());
  for (const Flag& flag : command.flags) names.push_back(flag.name);
  return fmt::format("{}", fmt::join(names, " "));
}

// The lines of a `case` that follow the words of the line into nested commands. word: the shell's current word
std::string walk(const std::vector<Command>& commands, const std::string& word) {
  std::string lines;
  for (const Command& command : commands) {
    if (command.nested.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : command.nested) patterns.push_back(in_quotes(command.path + "/" + name));
    const std::string space = command.path.empty() ? "" : " ";
    lines += fmt::format("      {}) command=\"$command{}{}\" ;;\n", fmt::join(patterns, " | "), space, word);
  }
  return lines;
}

// The lines of a `case` for what an option takes, by the command and the word before.
std::string values(const std::vector<Command>& commands, const std::function<std::string(const Flag&)>& action) {
  std::string lines;
  for (const Command& command : commands) {
    for (const Flag& flag : command.flags) {
      if (flag.value)
        lines += fmt::format("    {}) {}; return ;;\n", in_quotes(command.path + " " + flag.name), action(flag));
    }
  }
  return lines;
}

std::string bash(const std::vector<Command>& commands) {
  std::string text =
      "# Completion of strata for bash. Load it: source <(strata completion bash)\n"
      "_strata_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"${COMP_WORDS[COMP_CWORD]}\"); }\n"
      "_strata() {\n"
      "  local command='' i\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"$command/${COMP_WORDS[i]}\" in\n" +
      walk(commands, "${COMP_WORDS[i]}") +
      "    esac\n"
      "  done\n"
      "  case \"$command ${COMP_WORDS[COMP_CWORD - 1]}\" in\n" +
      values(commands,
             [](const Flag& flag) -> std::string {
               if (!flag.choices.empty())
                 return "_strata_words " + in_quotes(fmt::format("{}", fmt::join(flag.choices, " ")));
               return flag.file ? "compopt -o default" : ":";
             }) +
      "  esac\n"
      "  case \"$command\" in\n";
  for (const Command& command : commands)
    text += fmt::format("    {}) _strata_words {} ;;\n", in_quotes(command.path), in_quotes(names_of(command)));
  return text +
         "  esac\n"
         "  [ ${#COMPREPLY[@]} -gt 0 ] || compopt -o default\n"
         "}\n"
         "complete -F _strata strata\n";
}

std::string zsh(const std::vector<Command>& commands) {
  auto entry = [](const std::string& name, const std::string& help) { return in_quotes(name + ":" + help); };
  std::string text =
      "#compdef strata\n"
      "# Completion of strata for zsh. Load it after compinit: source <(strata completion zsh)\n"
      "_strata() {\n"
      "  local command='' i\n"
      "  local -a names options\n"
      "  for ((i = 2; i < CURRENT; ++i)); do\n"
      "    case \"$command/$words[i]\" in\n" +
      walk(commands, "$words[i]") +
      "    esac\n"
      "  done\n"
      "  case \"$command $words[CURRENT-1]\" in\n" +
      values(commands,
             [](const Flag& flag) -> std::string {
               if (!flag.choices.empty()) return fmt::format("compadd -- {}", fmt::join(flag.choices, " "));
               return flag.file ? "_files" : "_message value";
             }) +
      "  esac\n"
      "  case \"$command\" in\n";
  for (const Command& command : commands) {
    text += fmt::format("    {})\n", in_quotes(command.path));
    for (const Command* child : children_of(command, commands))
      text += fmt::format("      names+=({})\n", entry(child->name(), child->help));
    for (const std::string& word : command.words) text += fmt::format("      names+=({})\n", word);
    for (const Flag& flag : command.flags) text += fmt::format("      options+=({})\n", entry(flag.name, flag.help));
    text += "      ;;\n";
  }
  return text +
         "  esac\n"
         "  if [[ $PREFIX == -* ]]; then\n"
         "    _describe -o option options\n"
         "  elif (( $#names )); then\n"
         "    _describe command names\n"
         "  else\n"
         "    _files\n"
         "  fi\n"
         "}\n"
         "compdef _strata strata\n";
}

std::string fish(const std::vector<Command>& commands) {
  std::string text =
      "# Completion of strata for fish. Load it: strata completion fish | source\n"
      "# __strata_at COMMAND: the command of the line so far is this one.\n"
      "function __strata_at\n"
      "  set -l command\n"
      "  for word in (commandline -opc)[2..]\n"
      "    switch (string join / -- $command $word)\n";
  std::vector<std::string> known;
  for (const Command& command : commands) {
    std::string path = command.path;
    std::replace(path.begin(), path.end(), ' ', '/');
    if (!path.empty()) known.push_back(in_quotes(path));
  }
  text += fmt::format("      case {}\n", fmt::join(known, " ")) +
          "        set -a command $word\n"
          "    end\n"
          "  end\n"
          "  test \"$command\" = \"$argv\"\n"
          "end\n"
          "complete -c strata -e\n";
  for (const Command& command : commands) {
    const std::string here = fmt::format("complete -c strata -n '__strata_at {}'", command.path);
    for (const Command* child : children_of(command, commands))
      text += fmt::format("{} -f -a {} -d {}\n", here, child->name(), in_quotes(child->help));
    for (const std::string& word : command.words) text += fmt::format("{} -f -a {}\n", here, word);
    for (const Flag& flag : command.flags) {
      const std::string takes = !flag.value ? ""
                                : !flag.choices.empty()
                                    ? " -x -a " + in_quotes(fmt::format("{}", fmt::join(flag.choices, " ")))
                                : flag.file ? " -r -F"
                                            : " -x";
      text += fmt::format("{} -l {}{} -d {}\n", here, flag.name.substr(2), takes, in_quotes(flag.help));
    }
  }
  return text;
}

}  // namespace

void add_completion_command(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for a shell");
  command->add_option("shell", *shell, "The shell")->required()->type_name("bash|zsh|fish");
  command->footer(
      examples("  source <(strata completion bash)                                  in ~/.bashrc\n"
               "  source <(strata completion zsh)                                   in ~/.zshrc, after compinit\n"
               "  strata completion fish > ~/.config/fish/completions/strata.fish   once"));
  command->callback([&app, shell] {
    std::vector<Command> commands;
    collect(app, "", commands);
    if (*shell == "bash") return fmt::print("{}", bash(commands));
    if (*shell == "zsh") return fmt::print("{}", zsh(commands));
    if (*shell == "fish") return fmt::print("{}", fish(commands));
    throw usage_error("completion: expected bash, zsh or fish, got {}", shown(*shell));
  });
}

}  // namespace strata
