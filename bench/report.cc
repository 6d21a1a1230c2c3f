#include "bench/report.h"

#include <cstdio>
#include <fstream>

#include "util/json.h"
#include "util/options.h"

namespace strata::bench {

std::vector<Figure> build_figures(const Arguments& arguments) {
  if (arguments.build_times.empty()) return {};
  std::ifstream file(arguments.build_times);
  if (!file) {
    std::printf("no clean-build times yet: run `make build-times` (%s)\n", arguments.build_times.c_str());
    return {};
  }
  const auto times = parse_json<Json>(read_file(arguments.build_times));
  return {{"build_seconds_core", times.at("build_seconds_core"), "<= 60"},
          {"build_seconds_all", times.at("build_seconds_all"), "<= 360"}};
}

void report(std::vector<Figure> figures, const Arguments& arguments) {
  std::printf("%-48s %10s   %s\n", "figure", "value", "bar");
  for (const Figure& figure : figures)
    std::printf("%-48s %10.3f   %s\n", figure.name.c_str(), figure.value, figure.bar);
  std::printf("\n");
  if (arguments.json.empty()) return;
  Json all = Json::object();
  if (std::ifstream existing(arguments.json); existing) all = parse_json<Json>(read_file(arguments.json));
  if (!all.is_object()) all = Json::object();
  for (const Figure& figure : figures) all[figure.name] = figure.value;
  write_json(arguments.json, all);
  std::printf("written to %s\n\n", arguments.json.c_str());
}

}  // namespace strata::bench
