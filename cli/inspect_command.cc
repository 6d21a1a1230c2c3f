#include <fmt/format.h>

#include <algorithm>

#include "bind.h"
#include "commands.h"
#include "data/config.h"
#include "inspect/inspect_model.h"
#include "inspect_tables.h"
#include "model/system.h"
#include "report/report.h"
#include "theory/subsumption.h"
#include "util/common_options.h"
#include "util/error.h"

namespace strata {
namespace {

struct InspectState {
  InspectRequest request;
  DataConfig data;
  OptionTable table;
  std::string output;
  bool json = false, subsumption = false;
};

void show_subsumption(bool json) {
  Json all = Json::array();
  for (const int64_t tokens : {16, 128, 1024}) {
    const SubsumptionResult r = subsumption(tokens, 4, 1);
    all.push_back({{"tokens", tokens},
                   {"one_level", r.one_level},
                   {"one_hot", r.one_hot},
                   {"convolution", r.convolution},
                   {"largest_stray", r.largest_stray},
                   {"sharpness", r.sharpness},
                   {"head_size", r.head_size},
                   {"flat_permuted", r.strict.flat_permuted},
                   {"hkt_permuted", r.strict.hkt_permuted},
                   {"convolution_beyond", r.strict.convolution_beyond},
                   {"hkt_beyond", r.strict.hkt_beyond}});
  }
  if (json) return fmt::print("{}\n", all.dump(2));
  fmt::print("HKT contains standard attention and causal convolution; largest differences, in float32:\n\n");
  fmt::print("{:>7} {:>22} {:>24} {:>26} {:>20}\n", "tokens", "attention from L = 1", "from weights (1, 0, 0)",
             "convolution (4 taps)", "stray weight");
  for (const Json& r : all) {
    fmt::print("{:>7} {:>22.1e} {:>24.1e} {:>26.1e} {:>20.1e}\n", r["tokens"].get<int64_t>(),
               r["one_level"].get<double>(), r["one_hot"].get<double>(), r["convolution"].get<double>(),
               r["largest_stray"].get<double>());
  }
  fmt::print("\nNeither contains HKT; largest changes of the last token's output, in float64, without positions:\n\n");
  fmt::print("{:>7} {:>47} {:>51}\n", "", "tokens before it permuted:", "the token 4 back changed:");
  fmt::print("{:>7} {:>22} {:>24} {:>26} {:>24}\n", "tokens", "flat attention", "HKT", "convolution (4 taps)", "HKT");
  for (const Json& r : all) {
    fmt::print("{:>7} {:>22.1e} {:>24.1e} {:>26.1e} {:>24.1e}\n", r["tokens"].get<int64_t>(),
               r["flat_permuted"].get<double>(), r["hkt_permuted"].get<double>(), r["convolution_beyond"].get<double>(),
               r["hkt_beyond"].get<double>());
  }
}

void run_inspect(InspectState& state) {
  if (state.subsumption) return show_subsumption(state.json);
  if (state.request.model.empty())
    throw usage_error("inspect: expected a run's folder, a model file or --subsumption, got nothing");
  check_output(state.output);
  set_threads(state.request.threads);
  state.request.data = state.table.given("Data");
  const Json result = inspect_model(state.request);
  fs::path output = state.output;
  if (output.empty())
    output = fs::is_directory(state.request.model) ? fs::path(state.request.model) / "inspect.json"
                                                   : fs::path("inspect.json");
  write_json(output, result);
  Report page = write_inspect_report(output);
  const auto known = result.at("problems").get<std::vector<std::string>>();  // printed below
  std::erase_if(page.problems,
                [&](const auto& one) { return std::find(known.begin(), known.end(), one) != known.end(); });
  warn_of_problems(page);
  if (state.json) return fmt::print("{}\n", result.dump());
  fmt::print("{}: {} attention on {}, {} rows of the {} split, {:.1f} tokens on average\n\n", state.request.model,
             result.at("attention").get<std::string>(), result.at("task").get<std::string>(),
             result.at("samples").get<int64_t>(), state.request.split, result.at("mean_tokens").get<double>());
  print_inspected(result);
  for (const Json& problem : result.at("problems")) fmt::print("not computed: {}\n", problem.get<std::string>());
  fmt::print("\nwritten to {}; report: {}\n", output.string(), page.path.string());
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  auto state = std::make_shared<InspectState>();
  CLI::App* command =
      app.add_subcommand("inspect", "The theory on a trained model: PSD, direction, error, decay, Gaussianity");
  OptionTable& table = state->table;
  command->add_option("model", state->request.model, "A run's folder, or a model file")->type_name("MODEL");
  declare(table, state->data);
  declare(table, state->request);
  table.add(
      "subsumption", &state->subsumption,
      {.help =
           "Build standard attention and a convolution from HKT, and inputs that tell HKT from both; needs no model"});
  declare_output(table, state->output, "inspect.json in the run's folder if not given");
  declare_quiet(table, state->request.quiet);
  declare_json(table, state->json);
  command->footer(
      examples("  strata inspect runs/listops-hkt-seed1\n"
               "  strata inspect runs/imdb-hkt-seed1 --samples 16 --json\n"
               "  strata inspect --subsumption"));
  bind_command(*command, table, [state] { run_inspect(*state); }, {.has_model = true});
}

}  // namespace strata
