#include <fmt/format.h>

#include "bind.h"
#include "commands.h"
#include "compare/compare.h"
#include "report/report.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace strata {
namespace {

struct State {
  RunConfig run;
  CompareOptions compare;
  OptionTable table;
  std::string config, folder;
  bool json = false, dry_run = false;
};

void print_plan(const State& state) {
  for (const Variant& variant : parse_variants(state.compare.attentions, state.run)) {
    fmt::print("{}, seeds {} to {}\n", variant.name, state.run.train.seed,
               state.run.train.seed + state.compare.seeds - 1);
  }
  const Json record = state.table.record();
  for (const auto& [name, value] : record.items()) fmt::print("  {} = {}\n", name, value.dump());
}

std::string cell(const Json& value, const char* format) {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

void print_table(const Json& results) {
  size_t width = 10;
  for (const Json& a : results.at("attentions")) width = std::max(width, a.at("name").get<std::string>().size() + 1);
  fmt::print("\n{:<{}} {:>18}  {:>10}  {:>10}  {:>11}  {:>9}\n", results.at("task").get<std::string>(), width,
             results.at("measure").get<std::string>(), "validation", "parameters", "score FLOPs", "step time");
  for (const Json& a : results.at("attentions")) {
    fmt::print("{:<{}} {:>18}  {:>10}  {:>10}  {:>10}x  {:>8}x\n", a.at("name").get<std::string>(), width,
               cell(a.at("mean"), "{:.2f}") + " +- " + cell(a.at("standard_deviation"), "{:.2f}"),
               cell(a.at("valid_mean"), "{:.2f}"), a.at("parameters").get<int64_t>(),
               cell(a.at("score_ratio"), "{:.4f}"), cell(a.at("time_ratio"), "{:.2f}"));
  }
  fmt::print("\n");
  for (const std::string& line : verdicts(results)) fmt::print("{}\n", line);
}

}  // namespace

void add_compare_command(CLI::App& app) {
  auto state = std::make_shared<State>();
  CLI::App* command =
      app.add_subcommand("compare", "Train several attentions over several seeds and test the differences");
  OptionTable& table = state->table;
  declare(table, state->run);
  table.begin_group("Comparing");
  table.add("attentions", &state->compare.attentions,
            {.help = "Attentions, each with options of its own: flat hkt:levels=2"});
  table.add("seeds", &state->compare.seeds, {.help = "Runs of each, from --seed on", .min = 1, .max = 1000});
  table.add("jobs", &state->compare.jobs,
            {.help = "Runs side by side; 0: as many as cores, one on a GPU", .min = 0, .max = 1024});
  table.add("minutes", &state->compare.minutes,
            {.help = "Save and stop after so many minutes, the same command goes on; 0: never", .min = 0});
  bind_options(*command, table);
  bind_config(*command, state->config);
  command->add_option("--folder", state->folder, "Where the runs are kept; runs/compare-TASK if not given")
      ->type_name("FOLDER");
  command->add_flag("--quiet", state->compare.quiet, "No progress");
  command->add_flag("--dry-run", state->dry_run, "Print what would be run, with all options, and stop");
  command->add_flag("--json", state->json, "Print the results as JSON");
  command->footer(examples(
      "  strata compare\n"
      "  strata compare --config configs/demo.toml\n"
      "  strata compare --attentions flat hkt hkt:filters=dense hsa hsa:tree=balanced --seeds 5\n"
      "  strata compare --task imdb --epochs 8 --folder runs/imdb      the same command goes on after a stop"));
  command->callback([state, command] {
    refuse_extras(*command);
    apply_config(state->table, state->config);
    if (state->table.find("attention")->given)
      throw usage_error("--attention: a comparison has several; use --attentions");
    if (state->folder.empty()) state->folder = "runs/compare-" + state->run.data.task;
    if (state->dry_run) return print_plan(*state);
    watch_for_interrupts();
    const Json results = compare(state->run, state->compare, state->folder, "/proc/self/exe");
    if (state->json) {
      fmt::print("{}\n", results.dump());
    } else {
      print_table(results);
    }
    write_compare_report(state->folder);
    if (state->json) return;
    fmt::print("\nwritten to {}: report.html to look at, results.json, results.md, results.csv, and a folder per run\n",
               state->folder);
  });
}

}  // namespace strata
