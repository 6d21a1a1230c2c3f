#include <fmt/format.h>

#include "bind.h"
#include "commands.h"
#include "report/report.h"
#include "util/common_options.h"
#include "util/text.h"

namespace strata {

namespace {

struct ReportState {
  std::string folder;
  OptionTable table;
  bool json = false;
};

void run_report(const ReportState& state) {
  Json written = Json::array();
  for (const Report& report : write_reports(state.folder)) {
    written.push_back({{"path", report.path.string()}, {"problems", report.problems}});
    if (state.json) continue;
    fmt::print("written to {}\n", report.path.string());
    for (const std::string& problem : report.problems) fmt::print("  {}\n", shown_message(problem));
  }
  if (state.json) fmt::print("{}\n", written.dump());
}

}  // namespace

void add_report_command(CLI::App& app) {
  auto state = std::make_shared<ReportState>();
  CLI::App* command = app.add_subcommand("report", "Make the HTML reports of a folder again, from its JSON files");
  command->add_option("folder", state->folder, "The folder of a run or a comparison")->required()->type_name("FOLDER");
  declare_json(state->table, state->json);
  command->footer(
      examples("  strata report runs/listops-hkt-seed1      report.html, and inspect.html if it was inspected\n"
               "  strata report runs/compare-listops        report.html, also while the comparison runs"));
  bind_command(*command, state->table, [state] { run_report(*state); });
}

}  // namespace strata
