#include <fmt/format.h>

#include <algorithm>

#include "bind.h"
#include "commands.h"
#include "compare/compare.h"
#include "compare/search.h"
#include "compare/tables.h"
#include "report/report.h"
#include "util/common_options.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/progress.h"

namespace strata {
namespace {

struct CompareState {
  RunConfig run;
  CompareOptions compare;
  OptionTable table;
  std::string folder;
  bool json = false, dry_run = false;
};

void print_plan(const CompareState& state) {
  for (const Variant& variant : parse_variants(state.compare.attentions, state.run)) {
    fmt::print("{}, seeds {} to {}\n", variant.name, state.run.train.seed,
               state.run.train.seed + state.compare.seeds - 1);
    if (!state.compare.search_rates.empty() && !variant.has_rate) {
      fmt::print("  after a search: learning rates {}, {:g} of the steps\n",
                 fmt::join(parse_rates(state.compare.search_rates), ", "), state.compare.search_part);
    }
  }
  const Json record = state.table.record();
  for (const auto& [name, value] : record.items()) fmt::print("  {} = {}\n", name, value.dump());
}

// Whether there is something to search, and whether the search decides what is given.
void check_search(CompareState& state) {
  if (state.compare.search_rates.empty()) {
    if (state.table.find("search_part")->given)
      throw usage_error("--search-part: expected --search-rates beside it, got none");
    return;
  }
  const std::vector<Variant> variants = parse_variants(state.compare.attentions, state.run);
  if (std::all_of(variants.begin(), variants.end(), [](const Variant& variant) { return variant.has_rate; }))
    throw usage_error("--search-rates: expected an attention without a learning rate of its own, got {}",
                      fmt::join(state.compare.attentions, " "));
  if (state.table.find("learning_rate")->given)
    Progress(state.compare.quiet).note("warning: --learning-rate is not used; the search chooses among --search-rates");
}

void run_compare(CompareState& state) {
  if (state.table.find("attention")->given)
    throw usage_error("--attention: a comparison has several; use --attentions");
  check_search(state);
  if (state.folder.empty()) state.folder = "runs/compare-" + state.run.data.task;
  if (state.dry_run) return print_plan(state);
  watch_for_interrupts();
  const Json results = compare(state.run, state.compare, state.folder, "/proc/self/exe");
  if (state.json) {
    fmt::print("{}\n", results.dump());
  } else {
    fmt::print("\n{}\n", to_text(results));
    for (const std::string& line : search_lines(results)) fmt::print("{}\n", line);
    for (const std::string& line : verdicts(results)) fmt::print("{}\n", line);
  }
  warn_of_problems(write_compare_report(state.folder));
  if (state.json) return;
  fmt::print("\nwritten to {}: report.html, results.json, results.md, results.csv, and a folder per run\n",
             state.folder);
}

}  // namespace

void add_compare_command(CLI::App& app) {
  auto state = std::make_shared<CompareState>();
  CLI::App* command =
      app.add_subcommand("compare", "Train several attentions over several seeds and test the differences");
  OptionTable& table = state->table;
  declare(table, state->run);
  declare(table, state->compare);
  table.begin_group("Output");
  table.add("folder", &state->folder,
            {.help = "Folder of the runs; runs/compare-TASK if not given", .type = "FOLDER", .recorded = false});
  table.add("dry_run", &state->dry_run,
            {.help = "Print what would be run, with all options, and stop", .recorded = false});
  declare_quiet(table, state->compare.quiet);
  declare_json(table, state->json);
  command->footer(examples(
      "  strata compare\n"
      "  strata compare --config configs/demo.toml\n"
      "  strata compare --attentions flat hkt hkt:filters=dense hsa hsa:tree=balanced --seeds 5\n"
      "  strata compare --task imdb --epochs 8 --folder runs/imdb      the same command continues after a stop"));
  bind_command(*command, table, [state] { run_compare(*state); });
}

}  // namespace strata
