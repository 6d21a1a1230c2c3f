#include "report/collect.h"

#include <fmt/format.h>

#include <algorithm>

#include "compare/compare.h"
#include "train/metrics.h"
#include "util/error.h"
#include "util/json.h"

namespace strata {
namespace {

// A file's content, or null and a line in `problems`.
Json read_part(const fs::path& path, const std::string& missing, Json& problems) {
  const std::string name = (path.parent_path().filename() / path.filename()).string();
  if (!is_there(path)) {
    problems.push_back(fmt::format("{} is missing: {}", name, missing));
    return {};
  }
  try {
    const std::string text = read_raw_file(path);
    Json part = parse_json<Json>(text);
    if (part.is_object()) return part;
    problems.push_back(fmt::format("{} is damaged: expected a JSON object, got {}", name, json_kind(part, text)));
  } catch (const Error& error) {
    problems.push_back(error.what());
  }
  return {};
}

// At most `most` lines of the kind "train", evenly spaced and including the last one, and all lines of other kinds.
Json read_course(const fs::path& folder, size_t most, Json& problems) {
  int64_t damaged = 0;
  const std::string name = (folder.filename() / "metrics.jsonl").string();
  std::vector<Json> lines;
  try {
    if (is_there(folder / "metrics.jsonl")) lines = read_metrics(folder, &damaged);
  } catch (const Error& error) {
    problems.push_back(error.what());
  }
  if (lines.empty()) problems.push_back(fmt::format("{} is missing or empty: no curves for this run", name));
  if (damaged > 0) problems.push_back(fmt::format("{}: {} damaged lines were left out", name, damaged));
  auto is_train = [](const Json& line) { return line.contains("kind") && line["kind"] == "train"; };
  const auto train = static_cast<size_t>(std::count_if(lines.begin(), lines.end(), is_train));
  const size_t every = std::max<size_t>(1, (train + most - 1) / most);
  Json course = Json::array();
  size_t seen = 0;
  for (const Json& line : lines) {
    if (!is_train(line) || (train - ++seen) % every == 0) course.push_back(line);
  }
  return course;
}

Json options_of(const Json& record) {
  return record.is_object() && record.contains("options") ? record["options"] : Json();
}

using Runs = std::vector<std::pair<std::string, fs::path>>;  // attention, folder

// The runs that the plan of a comparison names; none if it is missing or damaged.
Runs planned_runs(const fs::path& folder, const Json& plan) {
  constexpr double kMostRuns = 10000;
  Runs runs;
  try {
    const double first = plan.at("options").at("seed"), seeds = plan.at("seeds");
    const Json& attentions = plan.at("attentions");
    if (first < 0 || first > kMostSeed || seeds < 0 || seeds * static_cast<double>(attentions.size()) > kMostRuns)
      return {};
    for (const Json& attention : attentions) {
      for (int64_t seed = 0; seed < static_cast<int64_t>(seeds); ++seed) {
        const auto name = attention.get<std::string>();
        runs.emplace_back(name, run_folder(folder, name, static_cast<int64_t>(first) + seed));
      }
    }
  } catch (const Json::exception&) {
    return {};
  }
  return runs;
}

// The runs of a comparison, from its plan; without a plan, all folders with a run.json.
Runs run_folders(const fs::path& folder, const Json& plan) {
  Runs runs = planned_runs(folder, plan);
  if (!runs.empty()) return runs;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_there(entry.path() / "run.json")) runs.emplace_back(name.substr(0, name.rfind("-seed")), entry.path());
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

}  // namespace

Json collect_inspect(const fs::path& json) {
  Json problems = Json::array();
  Json inspected = read_part(json, "run strata inspect", problems);
  if (inspected.is_null()) inspected = Json::object();
  if (inspected.contains("problems") && inspected["problems"].is_array()) {
    for (const Json& problem : inspected["problems"]) {
      if (problem.is_string()) problems.push_back(problem);
    }
  }
  const fs::path folder = json.parent_path();
  Json page = {{"kind", "inspect"},
               {"title", fmt::format("Inspection of {}", inspected.contains("model") && inspected["model"].is_string()
                                                             ? inspected["model"].get<std::string>()
                                                             : json.string())}};
  if (is_there(folder / "metrics.jsonl")) page["metrics"] = read_course(folder, 400, problems);
  page["problems"] = problems;
  page["inspect"] = std::move(inspected);
  return page;
}

Json collect_inject(const fs::path& json) {
  Json problems = Json::array();
  Json injected = read_part(json, "run strata inject", problems);
  if (injected.is_null()) injected = Json::object();
  const std::string model = injected.contains("model") && injected["model"].is_string()
                                ? fs::path(injected["model"].get<std::string>()).filename().string()
                                : json.string();
  Json page = {{"kind", "inject"}, {"title", fmt::format("HSA injected into {}", model)}};
  page["problems"] = problems;
  page["inject"] = std::move(injected);
  return page;
}

Json collect_eval(const fs::path& json) {
  Json problems = Json::array();
  Json tested = read_part(json, "run strata eval --output", problems);
  if (tested.is_null()) tested = Json::object();
  const std::string model =
      tested.contains("model") && tested["model"].is_string() ? tested["model"].get<std::string>() : json.string();
  Json page = {{"kind", "eval"}, {"title", fmt::format("Test of {}", model)}};
  page["problems"] = problems;
  page["eval"] = std::move(tested);
  return page;
}

Json collect_bench(const fs::path& json) {
  Json problems = Json::array();
  Json figures = read_part(json, "run strata bench --json", problems);
  if (figures.is_null()) figures = Json::object();
  Json page = {{"kind", "bench"}, {"title", "Benchmark"}};
  page["problems"] = problems;
  page["bench"] = std::move(figures);
  return page;
}

Json collect_train(const fs::path& folder) {
  Json problems = Json::array();
  const Json run = read_part(folder / "run.json", "the options are unknown", problems);
  Json page = {{"kind", "train"}, {"title", fmt::format("Training of {}", fs::absolute(folder).filename().string())}};
  page["result"] = read_part(folder / "result.json", "the run is not finished", problems);
  page["metrics"] = read_course(folder, 400, problems);
  page["options"] = options_of(run);
  page["problems"] = problems;
  return page;
}

Json collect_compare(const fs::path& folder) {
  Json problems = Json::array();
  const Json plan =
      read_part(folder / "compare.json", "the plan is unknown; showing the runs in this folder", problems);
  const Json results = read_part(folder / "results.json", "the comparison is not finished", problems);
  Json page = {{"kind", "compare"}, {"title", fmt::format("Comparison {}", fs::absolute(folder).filename().string())}};
  page["results"] = results;
  try {
    page["verdicts"] = results.is_null() ? Json::array() : Json(verdicts(results));
  } catch (const Json::exception& error) {
    problems.push_back(fmt::format("results.json is damaged: {}", error.what()));
  }
  page["runs"] = Json::array();
  const auto runs = run_folders(folder, plan);
  const size_t lines = std::clamp<size_t>(4000 / std::max<size_t>(1, runs.size()), 20, 200);
  for (const auto& [attention, path] : runs) {
    Json result = read_part(path / "result.json", "this run is not finished", problems);
    if (result.is_object() && result.contains("test") && result["test"].is_object()) {
      for (const char* part : {"classes", "confusion", "worst"}) result["test"].erase(part);  // on the page of the run
    }
    page["runs"].push_back({{"name", path.filename().string()},
                            {"attention", attention},
                            {"result", std::move(result)},
                            {"metrics", read_course(path, lines, problems)}});
  }
  page["options"] = options_of(plan);
  page["problems"] = problems;
  return page;
}

}  // namespace strata
