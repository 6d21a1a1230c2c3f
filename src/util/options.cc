#include "util/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "util/config_file.h"
#include "util/error.h"
#include "util/text.h"

namespace strata {
namespace {

std::string with(std::string name, char from, char to) {
  std::replace(name.begin(), name.end(), from, to);
  return name;
}

// 1048576, not 1.04858e+06.
std::string limit(double value) {
  constexpr double kExact = kMostSeed;
  return value == std::floor(value) && std::abs(value) <= kExact ? fmt::format("{:.0f}", value)
                                                                 : fmt::format("{}", value);
}

enum class Parsed { kGood, kWrong, kTooLarge };

template <class Number>
Parsed parse_number(const std::string& word, Number& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (end != word.data() + word.size() || error == std::errc::invalid_argument) return Parsed::kWrong;
  return error == std::errc::result_out_of_range ? Parsed::kTooLarge : Parsed::kGood;
}

void check_range(double value, const std::string& word, const OptionNote& note, const std::string& where) {
  if (value >= note.min && value <= note.max) return;
  const std::string range = std::isinf(note.max)   ? limit(note.min) + " or more"
                            : std::isinf(note.min) ? limit(note.max) + " or less"
                                                   : fmt::format("{} to {}", limit(note.min), limit(note.max));
  throw usage_error("{}: expected {}, got {}", where, range, shown(word));
}

int64_t whole_number(const std::string& word, const OptionNote& note, const std::string& where) {
  int64_t value = 0;
  const Parsed parsed = parse_number(word, value);
  if (parsed == Parsed::kWrong) throw usage_error("{}: expected a whole number, got {}", where, shown(word));
  if (parsed == Parsed::kTooLarge) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    check_range(word[0] == '-' ? -kInfinity : kInfinity, word, note, where);
    throw usage_error("{}: expected a whole number of at most 64 bits, got {}", where, shown(word));
  }
  check_range(static_cast<double>(value), word, note, where);
  return value;
}

double real_number(const std::string& word, const OptionNote& note, const std::string& where) {
  double value = 0;
  const Parsed parsed = parse_number(word, value);
  if (parsed == Parsed::kWrong) throw usage_error("{}: expected a number, got {}", where, shown(word));
  if (parsed == Parsed::kTooLarge || !std::isfinite(value))
    throw usage_error("{}: expected a finite number, got {}", where, shown(word));
  check_range(value, word, note, where);
  return value;
}

// The number of single-letter edits between two words.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

std::vector<std::string> words_of(const Json& value, const std::string& where) {
  if (value.is_string()) return {value.get<std::string>()};
  if (value.is_boolean() || value.is_number()) return {value.dump()};
  if (value.is_array()) {
    std::vector<std::string> words;
    for (const Json& item : value) {
      const std::vector<std::string> word = words_of(item, where);
      words.insert(words.end(), word.begin(), word.end());
    }
    return words;
  }
  throw usage_error("{}: expected a word, a number, true, false or a list of them, got {}", where, value.type_name());
}

}  // namespace

std::string suggestion(const std::string& name, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 100;  // of a word that could be meant as a name
  if (name.size() > kLongest) return "";
  const std::string* nearest = nullptr;
  size_t fewest = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edits(name, candidate);
    if (distance < fewest) fewest = distance, nearest = &candidate;
  }
  return nearest == nullptr ? "" : fmt::format(" (did you mean {}?)", *nearest);
}

std::string Option::flag() const { return "--" + with(name, '_', '-'); }

std::string Option::type_name() const {
  if (!note.type.empty()) return note.type;
  if (!note.choices.empty()) return fmt::format("{}", fmt::join(note.choices, "|"));
  static const char* const names[] = {"", "N", "X", "TEXT", "LIST", "N,N"};
  return names[target.index()];
}

Json Option::value() const {
  return std::visit([](auto* pointer) { return Json(*pointer); }, target);
}

void OptionTable::add(std::string name, Option::Target target, OptionNote note) {
  options_.push_back({std::move(name), target, std::move(note), group_});
}

Option* OptionTable::find(const std::string& name) {
  const std::string key = with(name, '-', '_');
  for (Option& option : options_) {
    if (option.name == key) return &option;
  }
  return nullptr;
}

void OptionTable::set(Option& option, const std::vector<std::string>& words, const std::string& where) {
  if (auto* list = std::get_if<std::vector<std::string>*>(&option.target)) {
    **list = words;
    option.given = true;
    return;
  }
  if (auto* list = std::get_if<std::vector<int64_t>*>(&option.target)) {
    std::vector<int64_t> numbers;
    for (const std::string& word : words) {  // each a number, or several with commas between them
      for (size_t at = 0; at <= word.size();) {
        const size_t end = std::min(word.find(',', at), word.size());
        numbers.push_back(whole_number(word.substr(at, end - at), option.note, where));
        at = end + 1;
      }
    }
    **list = numbers;
    option.given = true;
    return;
  }
  if (words.size() != 1) throw usage_error("{}: expected one value, got {}", where, words.size());
  const std::string& word = words[0];
  const OptionNote& note = option.note;
  if (auto* flag = std::get_if<bool*>(&option.target)) {
    if (word != "true" && word != "false") throw usage_error("{}: expected true or false, got {}", where, shown(word));
    **flag = word == "true";
  } else if (auto* integer = std::get_if<int64_t*>(&option.target)) {
    **integer = whole_number(word, note, where);
  } else if (auto* real = std::get_if<double*>(&option.target)) {
    **real = real_number(word, note, where);
  } else {
    if (!note.choices.empty() && std::find(note.choices.begin(), note.choices.end(), word) == note.choices.end()) {
      throw usage_error("{}: expected one of {}, got {}{}", where, fmt::join(note.choices, ", "), shown(word),
                        suggestion(word, note.choices));
    }
    *std::get<std::string*>(option.target) = word;
  }
  option.given = true;
}

void OptionTable::set_all(const Json& values, const std::string& path, const Source& source,
                          std::set<std::string>& seen) {
  for (const auto& [key, value] : values.items()) {
    const std::string below = path + "/" + key;
    if (value.is_object()) {  // a section
      set_all(value, below, source, seen);
      continue;
    }
    std::string place = fmt::format("{}: {}", source.name, shown(key));
    if (source.lines != nullptr && source.lines->count(below) > 0)
      place = fmt::format("{}: line {}: {}", source.name, source.lines->at(below), shown(key));
    Option* option = find(key);
    if (option == nullptr) {
      std::vector<std::string> names;
      for (const Option& known : options_) names.push_back(known.name);
      throw usage_error("{}: unknown option{}", place, suggestion(with(key, '-', '_'), names));
    }
    if (!seen.insert(option->name).second) throw usage_error("{}: set twice", place);
    if (source.keep_given && option->given) continue;
    set(*option, words_of(value, place), place);
  }
}

void OptionTable::load_config(const fs::path& path) {
  std::set<std::string> seen;
  const ConfigFile config = read_config(path);
  set_all(config.values, "", {path.string(), &config.lines, /*keep_given=*/true}, seen);
}

void OptionTable::restore(const Json& record, const std::string& where) {
  std::set<std::string> seen;
  set_all(record, "", {where, nullptr, /*keep_given=*/false}, seen);
  for (Option& option : options_) option.given = false;
}

Json OptionTable::record() const {
  Json record = Json::object();
  for (const Option& option : options_) {
    if (option.note.recorded) record[option.name] = option.value();
  }
  return record;
}

Json OptionTable::given(const std::string& group) const {
  Json record = Json::object();
  for (const Option& option : options_) {
    if (option.given && option.group == group) record[option.name] = option.value();
  }
  return record;
}

void OptionTable::check_task(const std::string& task) const {
  Json values = Json::object();
  for (const Option& option : options_) {
    if (option.given) values[option.name] = option.value();
  }
  check_task(task, values);
}

void OptionTable::check_task(const std::string& task, const Json& values) const {
  for (const Option& option : options_) {
    if (values.contains(option.name) && !option.note.task.empty() && option.note.task != task) {
      throw usage_error("{}: applies to the task {} only, but the task is {}; remove it, or choose --task {}",
                        option.name, option.note.task, task, option.note.task);
    }
  }
}

}  // namespace strata
