#include "bench/report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "util/json.h"
#include "util/options.h"

namespace strata::bench {

namespace {

// The kernels of these figures, and the roof above all kernels of the file: three points of FLOPs per byte and TFLOP/s.
void add_roofline(const std::vector<Figure>& figures, const Ceilings& ceilings, const std::string& device, Json& all) {
  if (all.contains("roofline") && all["roofline"].value("device", "") != device) all.erase("roofline");  // another roof
  for (const Figure& figure : figures) {
    const Work& work = figure.work;
    if (work.seconds == 0) continue;
    const double floor = ceilings.floor(work);
    all["roofline"]["kernels"][figure.name] = {{"milliseconds", 1e3 * work.seconds},
                                               {"flops", work.flops},
                                               {"bytes", work.bytes},
                                               {"floor_milliseconds", 1e3 * floor},
                                               {"share", floor / work.seconds},
                                               {"flops_per_byte", work.flops / work.bytes},
                                               {"teraflops", 1e-12 * work.flops / work.seconds}};
  }
  if (!all.contains("roofline")) return;
  Json& roofline = all["roofline"];
  roofline["device"] = device;
  roofline["flops_per_second"] = ceilings.flops;
  roofline["bytes_per_second"] = ceilings.bytes;
  const double ridge = ceilings.flops / ceilings.bytes;
  double least = ridge, most = ridge;
  for (const Json& kernel : roofline["kernels"]) {
    least = std::min(least, kernel.value("flops_per_byte", ridge));
    most = std::max(most, kernel.value("flops_per_byte", ridge));
  }
  roofline["roof"] = Json::array();
  for (const double x : {least / 2, ridge, most * 2})
    roofline["roof"].push_back(
        {{"flops_per_byte", x}, {"teraflops", 1e-12 * std::min(ceilings.flops, x * ceilings.bytes)}});
}

}  // namespace

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
  add_roofline(figures, ceilings, arguments.device, all);
  write_json(arguments.json, all);
  std::printf("written to %s\n\n", arguments.json.c_str());
}

}  // namespace strata::bench
