#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "bench/report.h"
#include "bind.h"
#include "commands.h"
#include "train/system.h"
#include "util/error.h"

namespace strata {
namespace {

// What there is to measure, on the CPU and on a GPU (nullptr: not there).
struct Bench {
  const char* name;
  std::vector<bench::Figure> (*cpu)(const bench::Arguments&);
  std::vector<bench::Figure> (*cuda)(const bench::Arguments&);
};
const std::vector<Bench> kBenches = {
#ifdef STRATA_CUDA
    {"hkt", bench::hkt_figures, bench::hkt_cuda_figures},
    {"hsa", bench::hsa_figures, bench::hsa_cuda_figures},
    {"train", bench::train_figures, bench::train_cuda_figures},
#else
    {"hkt", bench::hkt_figures, nullptr},
    {"hsa", bench::hsa_figures, nullptr},
    {"train", bench::train_figures, nullptr},
#endif
#ifdef STRATA_HUB
    {"inject", bench::inject_figures, nullptr},
#endif
};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Bench& one : kBenches) all.emplace_back(one.name);
  return all;
}

struct State {
  std::vector<std::string> which;
  std::string device = "cpu";
  bench::Arguments arguments;
};

// Figures mean little without what they were measured on.
void print_machine(const State& state) {
  const Json info = system_info();
  const std::string blas = info["openblas"];
  fmt::print("{}; {} threads; {}; torch {}, BLAS {}{}\n", info["cpu"].get<std::string>(), state.arguments.threads,
             info["instruction_set"].get<std::string>(), info["torch"].get<std::string>(),
             blas.empty() ? "not OpenBLAS" : "OpenBLAS for " + blas,
             info.contains("gpu") ? "; " + info["gpu"].get<std::string>() : "");
  for (const auto& [name, value] : info["settings"].items()) fmt::print("{}={}\n", name, value.get<std::string>());
  fmt::print("\n");
  std::fflush(stdout);
}

void run(const State& state) {
  set_threads(state.arguments.threads);
  const bool cuda = state.device == "cuda";
  print_machine(state);
  for (const Bench& one : kBenches) {
    const bool named = std::find(state.which.begin(), state.which.end(), one.name) != state.which.end();
    if (!named && !state.which.empty()) continue;
    const auto figures = cuda ? one.cuda : one.cpu;
    if (figures == nullptr && (named || one.name == kBenches[0].name))
      throw usage_error("--device: there is no benchmark {} on a GPU in this build{}", one.name,
                        kBenches[0].cuda == nullptr ? "; build with -DSTRATA_CUDA=ON" : "");
    if (figures != nullptr) bench::report(figures(state.arguments), state.arguments);
  }
  if (const auto figures = bench::build_figures(state.arguments); !figures.empty())
    bench::report(figures, state.arguments);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto state = std::make_shared<State>();
  CLI::App* command = app.add_subcommand("bench", "Measure the kernels and training steps beside their peers");
  command->add_option("which", state->which, "hkt, hsa, train, inject; all if none is named")
      ->check(CLI::IsMember(names()))
      ->type_name("NAME");
  command->add_option("--device", state->device, "Where: cpu, or cuda beside PyTorch's own kernels")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--json", state->arguments.json, "Write the figures to this file as well")->type_name("FILE");
  command->add_option("--build-times", state->arguments.build_times, "Report clean-build times from this file")
      ->type_name("FILE");
  command->add_option("--threads", state->arguments.threads, "CPU threads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--rounds", state->arguments.rounds, "Times each is measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--model", state->arguments.model, "inject: a Hugging Face folder, to load and to time whole")
      ->type_name("FOLDER");
  command->add_option("--text", state->arguments.text, "inject: a text, to be read by that model's tokenizer")
      ->type_name("FILE");
  command->footer(examples("  strata bench hkt\n  strata bench --json figures.json\n  strata bench --device cuda"));
  command->callback([state] { run(*state); });
}

}  // namespace strata
