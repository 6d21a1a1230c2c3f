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

void report(const std::vector<Figure>& figures, const Ceilings& ceilings, const Arguments& arguments) {
  std::printf("%-56s %10s   %-8s %10s %10s %7s\n", "figure", "value", "bar", "ms", "floor, ms", "share");
  for (const Figure& figure : figures) {
    std::printf("%-56s %10.3f   %-8s", figure.name.c_str(), figure.value, figure.bar);
    if (figure.work.seconds > 0) {
      const double floor = ceilings.floor(figure.work);
      std::printf(" %10.3f %10.3f %6.1f%%", 1e3 * figure.work.seconds, 1e3 * floor, 100 * floor / figure.work.seconds);
    }
    std::printf("\n");
  }
  std::printf("\n");
  if (arguments.json.empty()) return;
  Json all = Json::object();
  if (std::ifstream existing(arguments.json); existing) all = parse_json<Json>(read_file(arguments.json));
  if (!all.is_object()) all = Json::object();
  for (const Figure& figure : figures) {
    all[figure.name] = figure.value;
    if (figure.bar[0] != '\0') all["bars"][figure.name] = figure.bar;
  }
  for (const Figure& figure : figures) {
    if (figure.work.seconds == 0) continue;
    Json& roofline = all["roofline"];
    roofline["flops_per_second"] = ceilings.flops;
    roofline["bytes_per_second"] = ceilings.bytes;
    const double floor = ceilings.floor(figure.work);
    roofline["kernels"][figure.name] = {{"milliseconds", 1e3 * figure.work.seconds},
                                        {"flops", figure.work.flops},
                                        {"bytes", figure.work.bytes},
                                        {"floor_milliseconds", 1e3 * floor},
                                        {"share", floor / figure.work.seconds}};
  }
  write_json(arguments.json, all);
  std::printf("written to %s\n\n", arguments.json.c_str());
}

}  // namespace strata::bench
