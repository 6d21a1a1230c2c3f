// Options declared once. One declaration gives the command-line flag, its help and default, the key in TOML and JSON
// config files, and the entry in the record of a run.
#pragma once

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "util/file.h"

namespace strata {

using Json = nlohmann::ordered_json;

// Limits of options that have no limit of their own. A number that no machine could use is a mistake, and sums and
// products of these stay exact.
inline constexpr double kMostCount = 1 << 30;
inline constexpr double kMostSeed = 9007199254740992;  // 2^53: the largest that a JSON reader keeps exactly

struct OptionNote {
  std::string help;
  std::vector<std::string> choices = {};  // of a word; anything else is refused
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  std::string task = {};  // the only task it is for; empty: every task
  std::string type = {};  // how the help calls its value (FILE); empty: by the type of the field
  bool recorded = true;   // false: says where results go or how they are shown, and is not part of a record
  bool repeated = false;  // of a list: one word per flag, and the flag several times
};

struct Option {
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, std::vector<int64_t>*>;

  std::string name;  // "batch_size": the key in files; the flag is --batch-size
  Target target;
  OptionNote note;
  std::string group;
  bool given = false;  // on the command line or in a file

  std::string flag() const;
  std::string type_name() const;
  Json value() const;
};

class OptionTable {
 public:
  void begin_group(std::string title) { group_ = std::move(title); }
  void add(std::string name, Option::Target target, OptionNote note);

  // Sets an option from words; it is then given. `where` begins the message of a refusal: "--batch-size", "my.toml:
  // batch_size".
  void set(Option& option, const std::vector<std::string>& words, const std::string& where);
  // Sets the options of a TOML or JSON file that the command line has not given. Sections only group.
  void load_config(const fs::path& path);
  // Sets all options of a record; unknown names are errors.
  void restore(const Json& record, const std::string& where);

  Option* find(const std::string& name);  // dashes and underscores are the same; null: no such option
  std::vector<Option>& options() { return options_; }
  Json record() const;
  Json given(const std::string& group) const;  // the options of a group that were given

  // Refuses options that were given, or those in `values`, if they are for another task.
  void check_task(const std::string& task) const;
  void check_task(const std::string& task, const Json& values) const;

 private:
  struct Source {                                 // of many values
    std::string name;                             // of a file or a record
    const std::map<std::string, int64_t>* lines;  // of its keys (util/config_file.h); null: unknown
    bool keep_given;                              // options that were given keep their values
  };
  void set_all(const Json& values, const std::string& path, const Source& source, std::set<std::string>& seen);

  std::vector<Option> options_;
  std::string group_;
};

// The name among `known` that is closest to `name`, as " (did you mean x?)"; empty if no name is close.
std::string suggestion(const std::string& name, const std::vector<std::string>& known);

}  // namespace strata
