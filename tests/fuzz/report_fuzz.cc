// libFuzzer target: whatever the files of a folder hold, its reports are written, and no "<" of the data gets into a
// page: neither an element nor the end of the script that carries the data.
#include <nlohmann/json.hpp>

#include "refusal.h"
#include "report/assets.h"
#include "report/report.h"

namespace {

using namespace strata;
using fuzz::require;

auto brackets(std::string_view text) { return std::count(text.begin(), text.end(), '<'); }

void check(const Report& report) {
  static const auto own = brackets(kPageHtml) + brackets(kPageCss) + brackets(kPageScript) + brackets(kChartScript);
  const std::string html = read_raw_file(report.path);
  require(brackets(html) == own, "no element from the data");
  const std::string_view open = R"(id="page">)";
  const size_t begin = html.find(open) + open.size(), end = html.find("</script>", begin);
  const Json page = Json::parse(html.substr(begin, end - begin));
  require(page.at("kind").is_string() && page.at("title").is_string(), "a page with a title");
  require(page.at("problems").size() == report.problems.size(), "every problem on the page");
  for (const std::string& problem : report.problems) fuzz::check_shown(problem);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path folder = fuzz::memory_folder("runs");
  static const std::vector<std::string> top = {"run.json",     "result.json",  "metrics.jsonl",
                                               "compare.json", "results.json", "inspect.json",
                                               "inject.json",  "eval.json",    "bench.json"};
  static const std::vector<std::string> inner = {"flat-seed1/run.json", "flat-seed1/result.json",
                                                 "flat-seed1/metrics.jsonl"};
  static const fs::path run = fuzz::memory_folder("runs/flat-seed1");
  const fuzz::Files input({reinterpret_cast<const char*>(data), size});
  fuzz::write_files(input, folder, top);
  fuzz::write_files(input, folder, inner);
  const bool any = std::any_of(top.begin(), top.end(), [&](const std::string& name) {
    return name != "result.json" && fs::exists(folder / name);
  });
  std::vector<Report> reports;
  require(fuzz::accepts([&] { reports = write_reports(folder); }) == any, "a report of every folder of a run");
  for (const Report& report : reports) check(report);
  return 0;
}
