#include <fmt/format.h>

#include "bind.h"
#include "commands.h"
#include "report/report.h"

namespace strata {

void add_report_command(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("report", "Make the HTML reports of a folder again, from its JSON files");
  command->add_option("folder", *folder, "The folder of a run or a comparison")->required()->type_name("FOLDER");
  command->footer(
      examples("  strata report runs/listops-hkt-seed1      report.html, and inspect.html if it was inspected\n"
               "  strata report runs/compare-listops        report.html, also of a comparison that still runs"));
  command->callback([folder] {
    for (const Report& report : write_reports(*folder)) {
      fmt::print("written to {}\n", report.path.string());
      for (const std::string& problem : report.problems) fmt::print("  {}\n", problem);
    }
  });
}

}  // namespace strata
