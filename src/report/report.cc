#include "report/report.h"

#include <fmt/format.h>

#include "report/assets.h"
#include "report/collect.h"
#include "util/error.h"
#include "util/progress.h"

namespace strata {
namespace {

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

// JSON inside a script element: "<" is escaped, because it could end the element or open a comment. It occurs only in
// strings, where \u003c means the same. Bytes that are not UTF-8 are replaced.
std::string script_json(const Json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

std::string render(const Json& page) {
  const std::pair<std::string_view, std::string> parts[] = {{"title", escape_html(page.at("title"))},
                                                            {"style", std::string(kPageCss)},
                                                            {"version", STRATA_VERSION},
                                                            {"data", script_json(page)},
                                                            {"chart", std::string(kChartScript)},
                                                            {"script", std::string(kPageScript)}};
  std::string html;
  size_t at = 0;
  for (size_t open = kPageHtml.find("{{"); open != std::string_view::npos; open = kPageHtml.find("{{", at)) {
    html += kPageHtml.substr(at, open - at);
    at = kPageHtml.find("}}", open) + 2;
    for (const auto& [name, text] : parts) {
      if (kPageHtml.substr(open + 2, at - open - 4) == name) html += text;
    }
  }
  return html += kPageHtml.substr(at);
}

Report write_page(const fs::path& path, const Json& page) {
  write_file(path, render(page));
  return {path, page.at("problems").get<std::vector<std::string>>()};
}

}  // namespace

void warn_of_problems(const Report& report) {
  for (const std::string& problem : report.problems)
    Progress().note(fmt::format("warning: {}: {}", report.path.string(), problem));
}

Report write_inspect_report(const fs::path& json) {
  return write_page(fs::path(json).replace_extension(".html"), collect_inspect(json));
}

Report write_inject_report(const fs::path& json) {
  return write_page(fs::path(json).replace_extension(".html"), collect_inject(json));
}

Report write_eval_report(const fs::path& json) {
  return write_page(fs::path(json).replace_extension(".html"), collect_eval(json));
}

Report write_bench_report(const fs::path& json) {
  return write_page(fs::path(json).replace_extension(".html"), collect_bench(json));
}

Report write_train_report(const fs::path& folder) { return write_page(folder / "report.html", collect_train(folder)); }

Report write_compare_report(const fs::path& folder) {
  const Json page = collect_compare(folder);
  for (const Json& run : page.at("runs")) {  // a run that has a result is not started again to write its page
    const fs::path path = folder / run.at("name").get<std::string>();
    if (is_there(path / "result.json") && !is_there(path / "report.html")) write_train_report(path);
  }
  return write_page(folder / "report.html", page);
}

std::vector<Report> write_reports(const fs::path& folder) {
  auto has = [&](const char* name) { return is_there(folder / name); };
  std::vector<Report> reports;
  if (has("compare.json") || has("results.json")) {
    reports.push_back(write_compare_report(folder));
  } else if (has("run.json") || has("metrics.jsonl")) {
    reports.push_back(write_train_report(folder));
  }
  if (has("inject.json")) reports.push_back(write_inject_report(folder / "inject.json"));
  if (has("bench.json")) reports.push_back(write_bench_report(folder / "bench.json"));
  if (has("eval.json")) reports.push_back(write_eval_report(folder / "eval.json"));
  if (has("inspect.json")) reports.push_back(write_inspect_report(folder / "inspect.json"));
  if (reports.empty()) {
    (void)fs::status(folder);  // throws if the file system refuses the folder itself: a loop of links, say
    throw output_error(
        "{}: expected the folder of a run, a comparison or an injection, with run.json, compare.json, eval.json, "
        "inspect.json, inject.json or bench.json in it",
        folder.string());
  }
  return reports;
}

}  // namespace strata
