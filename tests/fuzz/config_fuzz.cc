// libFuzzer target: a config file is refused, or sets every option to a value of its range, and the record of the
// options restores them. The first byte selects TOML or JSON.
#include <cmath>

#include "refusal.h"
#include "train/config.h"

namespace {

using strata::Json;
using strata::Option;
using strata::fuzz::require;

void check(const Option& option) {
  const Json value = option.value();
  const auto in_range = [&](const Json& number) {
    require(std::isfinite(number.get<double>()) && number.get<double>() >= option.note.min &&
                number.get<double>() <= option.note.max,
            "a number in the range of its option");
  };
  if (value.is_number()) in_range(value);
  if (value.is_array()) {
    for (const Json& item : value) {
      if (item.is_number()) in_range(item);
    }
  }
  const auto& choices = option.note.choices;
  if (!choices.empty())
    require(std::find(choices.begin(), choices.end(), value.get<std::string>()) != choices.end(), "one of the choices");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  if (size == 0) return 0;
  static const fs::path folder = fuzz::memory_folder("config");
  const std::string name = data[0] % 2 == 0 ? "fuzz.toml" : "fuzz.json";
  fuzz::Files file("");
  file.files.emplace_back(name, std::string(reinterpret_cast<const char*>(data + 1), size - 1));
  fuzz::write_files(file, folder, {name});
  static RunConfig config;
  static OptionTable table = [] {
    OptionTable declared;
    declare(declared, config);
    return declared;
  }();
  config = RunConfig();
  for (Option& option : table.options()) option.given = false;
  if (!fuzz::accepts([&] { table.load_config(folder / name); })) return 0;
  for (const Option& option : table.options()) check(option);
  const Json record = table.record();
  RunConfig again;
  OptionTable second;
  declare(second, again);
  second.restore(Json::parse(record.dump()), "record");
  require(second.record() == record, "a record restores its options");
  return 0;
}
