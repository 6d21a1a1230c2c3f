#include "compare/compare.h"
#include "util/common_options.h"
#include "util/error.h"

namespace strata {

void declare(OptionTable& table, CompareOptions& options) {
  table.begin_group("Comparing");
  table.add("attentions", &options.attentions, {.help = "Attentions, each with options of its own: flat hkt:levels=2"});
  table.add("seeds", &options.seeds, {.help = "Runs per attention; the first seed is --seed", .min = 1, .max = 1000});
  table.add("jobs", &options.jobs,
            {.help = "Runs at the same time; 0: one per core, a single one on a GPU", .min = 0, .max = 1024});
  table.add("minutes", &options.minutes,
            {.help = "Save and stop after this many minutes; the same command continues; 0: never",
             .min = 0,
             .max = kMostCount});
  declare_changed_data(table, options.allow_changed_data);
  table.begin_group("Searching");
  table.add("search_rates", &options.search_rates,
            {.help = "Choose the learning rate of each attention from these, by the validation rows; beyond the lowest "
                     "and the highest while one of these is best",
             .type = "RATE"});
  table.add(
      "search_part", &options.search_part,
      {.help = "Part of a run's steps that a run of the search takes, with the first seed", .min = 0.01, .max = 1});
}

namespace {

// Runs are paired by seed on the same rows. What the attention is and how it is trained may differ; data, seed, the
// rest of the model, and where and how runs are recorded may not.
bool may_differ(const Option& option) {
  static const std::set<std::string> groups = {kLevelOptions, kTreeOptions, "Training"};
  // What an attention may need otherwise, and what makes a block modern.
  static const std::set<std::string> model = {"heads", "dropout", "positions", "window", "block", "key_heads", "ffn"};
  return (groups.count(option.group) > 0 && option.name != "seed") || model.count(option.name) > 0;
}

void check_may_differ(const Option& asked, const std::string& variant) {
  if (may_differ(asked)) return;
  RunConfig config;
  OptionTable table;
  declare(table, config);
  std::vector<std::string> names;
  for (const Option& option : table.options()) {
    if (may_differ(option)) names.push_back(option.name);
  }
  throw usage_error(
      "--attentions {}: {} must be the same for all attentions, or their runs could not be compared; give it once, as "
      "{}. Options that may differ are {}",
      variant, asked.name, asked.flag(), fmt::join(names, ", "));
}

}  // namespace

std::vector<Variant> parse_variants(const std::vector<std::string>& names, const RunConfig& base) {
  std::vector<Variant> variants;
  for (const std::string& name : names) {
    Variant variant{name, base};
    OptionTable table;
    declare(table, variant.config);
    for (size_t at = 0, part = 0; at <= name.size(); ++part) {
      const size_t end = std::min(name.find(':', at), name.size());
      const std::string word = name.substr(at, end - at);
      const size_t equals = word.find('=');
      const std::string key = part == 0 ? "attention" : word.substr(0, equals);
      Option* option = table.find(key);
      if (option == nullptr || (part > 0 && equals == std::string::npos)) {
        throw usage_error("--attentions {}: expected ATTENTION or ATTENTION:OPTION=VALUE, got \"{}\"", name, word);
      }
      if (part > 0) check_may_differ(*option, name);
      variant.has_rate |= option->name == "learning_rate";
      table.set(*option, {part == 0 ? word : word.substr(equals + 1)}, "--attentions " + name);
      at = end + 1;
    }
    table.check_task(variant.config.data.task);
    variant.config.model = resolved(variant.config.model);
    for (const Variant& other : variants) {
      if (other.name == name) throw usage_error("--attentions: {} appears twice", name);
    }
    variants.push_back(std::move(variant));
  }
  if (variants.empty()) throw usage_error("--attentions: expected at least one attention");
  return variants;
}

}  // namespace strata
