#include "bench/report.h"
#include "bind.h"
#include "commands.h"
#include "train/system.h"
#include "util/error.h"

namespace strata {
namespace {

struct State {
  std::vector<std::string> which = {"hkt", "hsa", "train"};
  std::string device = "cpu";
  bench::Arguments arguments;
};

using Figures = std::vector<bench::Figure> (*)(const bench::Arguments&);

Figures figures_of(const std::string& name, const std::string& device) {
#ifdef STRATA_CUDA
  if (device == "cuda")
    return name == "hkt"   ? bench::hkt_cuda_figures
           : name == "hsa" ? bench::hsa_cuda_figures
                           : bench::train_cuda_figures;
#endif
  if (device == "cuda") throw usage_error("--device: this build has no CUDA kernels; build with -DSTRATA_CUDA=ON");
  return name == "hkt" ? bench::hkt_figures : name == "hsa" ? bench::hsa_figures : bench::train_figures;
}

void run(const State& state) {
  set_threads(state.arguments.threads);
  for (const std::string& name : state.which)
    bench::report(figures_of(name, state.device)(state.arguments), state.arguments);
  if (const auto figures = bench::build_figures(state.arguments); !figures.empty())
    bench::report(figures, state.arguments);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto state = std::make_shared<State>();
  CLI::App* command = app.add_subcommand("bench", "Measure the kernels and training steps beside their peers");
  command->add_option("which", state->which, "hkt, hsa, train; all if none is named")
      ->check(CLI::IsMember({"hkt", "hsa", "train"}))
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
  command->footer(examples("  strata bench hkt\n  strata bench --json figures.json\n  strata bench --device cuda"));
  command->callback([state] { run(*state); });
}

}  // namespace strata
