// What the benchmark programs share: their options, the table of figures, and the JSON file with one number per figure.
#pragma once

#include <omp.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace strata::bench {

struct Figure {
  std::string name;
  double value;
  const char* bar;  // what it should be, "" where nothing is asked
};

struct Arguments {
  std::string json, build_times;
  int threads = 2, rounds = 7;
};

inline Arguments parse_arguments(int argc, char** argv, const char* program) {
  Arguments a;
  for (int at = 1; at < argc; at += 2) {
    const std::string option = argv[at];
    const char* value = at + 1 < argc ? argv[at + 1] : nullptr;
    if (value != nullptr && option == "--json") {
      a.json = value;
    } else if (value != nullptr && option == "--build-times") {
      a.build_times = value;
    } else if (value != nullptr && option == "--threads") {
      a.threads = std::max(1, std::atoi(value));
    } else if (value != nullptr && option == "--rounds") {
      a.rounds = std::max(1, std::atoi(value));
    } else {
      std::fprintf(stderr, "usage: %s [--json FILE] [--build-times FILE] [--threads N] [--rounds N]\n", program);
      std::exit(option == "--help" ? 0 : 2);
    }
  }
  omp_set_num_threads(a.threads);
  torch::set_num_threads(a.threads);
  return a;
}

inline void add_build_times(const std::string& path, std::vector<Figure>& figures) {
  std::ifstream file(path);
  if (!file) {
    std::printf("no clean-build times yet: run `make build-times` (%s)\n", path.c_str());
    return;
  }
  const auto times = nlohmann::json::parse(file);
  figures.push_back({"build_seconds_core", times.at("build_seconds_core"), "<= 60"});
  figures.push_back({"build_seconds_all", times.at("build_seconds_all"), "<= 360"});
}

// Prints the table and adds to the JSON file; figures of other benchmarks that already stand there are kept.
inline void report(std::vector<Figure> figures, const Arguments& arguments) {
  if (!arguments.build_times.empty()) add_build_times(arguments.build_times, figures);
  std::printf("%-44s %10s   %s\n", "figure", "value", "bar");
  for (const Figure& figure : figures)
    std::printf("%-44s %10.3f   %s\n", figure.name.c_str(), figure.value, figure.bar);
  if (arguments.json.empty()) return;
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  if (std::ifstream existing(arguments.json); existing) all = nlohmann::ordered_json::parse(existing, nullptr, false);
  if (!all.is_object()) all = nlohmann::ordered_json::object();
  for (const Figure& figure : figures) all[figure.name] = figure.value;
  std::ofstream out(arguments.json);
  out << all.dump(2) << "\n";
  TORCH_CHECK(out.good(), "cannot write ", arguments.json);
  std::printf("\nwritten to %s\n\n", arguments.json.c_str());
}

}  // namespace strata::bench
