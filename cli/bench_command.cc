#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "bench/report.h"
#include "bind.h"
#include "commands.h"
#include "model/system.h"
#include "report/report.h"
#include "train/launch.h"
#include "train/record.h"
#include "util/common_options.h"
#include "util/error.h"
#include "util/json.h"
#include "util/output.h"

namespace strata {
namespace {

// What can be measured, on the CPU and on a GPU (nullptr: not available).
struct Bench {
  const char* name;
  std::vector<bench::Figure> (*cpu)(const bench::Arguments&);
  std::vector<bench::Figure> (*cuda)(const bench::Arguments&);
};
const std::vector<Bench> kBenches = {
#ifdef STRATA_CUDA
    {"hkt", bench::hkt_figures, bench::hkt_cuda_figures},
    {"hsa", bench::hsa_figures, bench::hsa_cuda_figures},
    {"strata", bench::strata_figures, bench::strata_cuda_figures},
    {"arguments", bench::argument_figures, bench::argument_cuda_figures},
    {"decode", nullptr, bench::decode_cuda_figures},
    {"train", bench::train_figures, bench::train_cuda_figures},
#else
    {"hkt", bench::hkt_figures, nullptr},
    {"hsa", bench::hsa_figures, nullptr},
    {"strata", bench::strata_figures, nullptr},
    {"arguments", bench::argument_figures, nullptr},
    {"train", bench::train_figures, nullptr},
#endif
    {"distributed", bench::distributed_figures, nullptr},
#if defined(STRATA_HUB) && defined(STRATA_CUDA)
    {"inject", bench::inject_figures, bench::inject_cuda_figures},
#elif defined(STRATA_HUB)
    {"inject", bench::inject_figures, nullptr},
#endif
};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Bench& one : kBenches) all.emplace_back(one.name);
  return all;
}

struct BenchState {
  std::vector<std::string> which;
  int64_t threads = 2, rounds = 7;
  bench::Arguments arguments;
  OptionTable table;
};

// The JSON file has one number per figure, and the record of the last command that wrote to it.
void write_record(const BenchState& state, Json record) {
  if (state.arguments.json.empty()) return;
  Json figures = parse_json<Json>(read_file(state.arguments.json));
  figures["record"] = finish_record(std::move(record));
  write_json(state.arguments.json, figures);
}

Json record_of(const BenchState& state) {
  Json options = {{"which", state.which}};
  options.update(state.table.record());
  std::vector<fs::path> read;
  for (const std::string& file : {state.arguments.model, state.arguments.text}) {
    if (!file.empty()) read.emplace_back(file);
  }
  return start_record("bench", options, state.arguments.device, read);
}

// Figures mean little without the machine they were measured on.
void print_machine(const BenchState& state) {
  const Json info = system_info();
  const std::string blas = info["openblas"];
  fmt::print("{}; {} threads; {}; torch {}, BLAS {}{}\n", info["cpu"].get<std::string>(), state.arguments.threads,
             info["instruction_set"].get<std::string>(), info["torch"].get<std::string>(),
             blas.empty() ? "not OpenBLAS" : "OpenBLAS for " + blas,
             info.contains("gpu") ? "; " + info["gpu"].get<std::string>() : "");
  for (const auto& [name, value] : info["settings"].items()) fmt::print("{}={}\n", name, value.get<std::string>());
  fmt::print("\n");
  flush_output();
}

// What the machine can do at best, for the floors of the kernels.
bench::Ceilings measure_ceilings(const BenchState& state, bool cuda) {
#ifdef STRATA_CUDA
  const bench::Ceilings ceilings = cuda ? bench::cuda_ceilings(state.arguments.rounds)
                                        : bench::cpu_ceilings(state.arguments.threads, state.arguments.rounds);
#else
  if (cuda) throw usage_error("--device: this build has no benchmarks for a GPU; build with -DSTRATA_CUDA=ON");
  const bench::Ceilings ceilings = bench::cpu_ceilings(state.arguments.threads, state.arguments.rounds);
#endif
  fmt::print("{} matrix product: {:.4g} TFLOP/s; copy: {:.4g} GB/s, read and written\n\n",
             cuda ? "bfloat16" : "float32", 1e-12 * ceilings.flops, 1e-9 * ceilings.bytes);
  flush_output();
  return ceilings;
}

void run_bench(BenchState& state) {
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  state.arguments.threads = static_cast<int>(state.threads > 0 ? state.threads : cores);
  state.arguments.rounds = static_cast<int>(state.rounds);
  if (is_launched()) return bench::measure_in_process(state.arguments);
  set_threads(state.arguments.threads);
  const bool cuda = state.arguments.device == "cuda";
  print_machine(state);
  const bench::Ceilings ceilings = measure_ceilings(state, cuda);
  const Json record = state.arguments.json.empty() ? Json() : record_of(state);
  for (const Bench& one : kBenches) {
    const bool named = std::find(state.which.begin(), state.which.end(), one.name) != state.which.end();
    if (!named && !state.which.empty()) continue;
    const auto figures = cuda ? one.cuda : one.cpu;
    if (figures == nullptr && named)
      throw usage_error("--device: there is no benchmark {} for {}", one.name, cuda ? "a GPU" : "the CPU");
    if (figures != nullptr) bench::report(figures(state.arguments), ceilings, state.arguments);
  }
  if (const auto figures = bench::build_figures(state.arguments); !figures.empty())
    bench::report(figures, ceilings, state.arguments);
  write_record(state, record);
  if (state.arguments.json.empty()) return;
  const Report page = write_bench_report(state.arguments.json);
  warn_of_problems(page);
  fmt::print("report: {}\n", page.path.string());
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto state = std::make_shared<BenchState>();
  CLI::App* command = app.add_subcommand("bench", "Measure the kernels and training steps next to those of PyTorch");
  command
      ->add_option("which", state->which,
                   "hkt, hsa, strata, arguments, decode, train, distributed, inject; all if none is named")
      ->check(CLI::IsMember(names()))
      ->type_name("NAME");
  OptionTable& table = state->table;
  table.begin_group("Measuring");
  table.add("device", &state->arguments.device,
            {.help = "Device; cuda compares with PyTorch's own kernels", .choices = {"cpu", "cuda"}});
  table.add("rounds", &state->rounds, {.help = "Measurements per figure", .min = 1, .max = 1 << 20});
  table.add("model", &state->arguments.model,
            {.help = "inject: a Hugging Face folder, to load and to time as a whole", .type = "FOLDER"});
  table.add("text", &state->arguments.text, {.help = "inject: a text for that model", .type = "FILE"});
  table.add("build_times", &state->arguments.build_times,
            {.help = "Report clean-build times from this file", .type = "FILE"});
  declare_threads(table, state->threads);
  table.begin_group("Output");
  table.add("json", &state->arguments.json,
            {.help = "Write the figures to this file as well, and a report with a roofline beside it",
             .type = "FILE",
             .recorded = false});
  command->footer(examples("  strata bench hkt\n  strata bench --json figures.json\n  strata bench --device cuda"));
  bind_command(*command, table, [state] { run_bench(*state); });
}

}  // namespace strata
