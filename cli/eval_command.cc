#include <fmt/format.h>

#include <numbers>

#include "bind.h"
#include "commands.h"
#include "model/system.h"
#include "report/report.h"
#include "train/answers.h"
#include "train/use_model.h"
#include "util/common_options.h"

namespace strata {
namespace {

struct EvalState {
  EvaluateRequest request;
  DataConfig data;
  OptionTable table;
  std::string output;
  bool json = false;
};

std::string shown_split(const std::string& split) { return split == "all" ? "all rows" : split + " split"; }

// Of a language model, by place in the context or by what its rows ask.
void print_parts(const Json& parts, const char* what) {
  fmt::print("\n{:<14} {:>9} {:>9} {:>9} {:>12}\n", what, "targets", "loss", "bits", "accuracy, %");
  for (const Json& part : parts) {
    const double loss = part["loss"];
    fmt::print("{:<14} {:>9} {:>9.4f} {:>9.4f} {:>12.2f}\n", part["name"].get<std::string>(),
               part["targets"].get<int64_t>(), loss, loss / std::numbers::ln2, 100 * part["accuracy"].get<double>());
  }
}

void run_eval(EvalState& state) {
  check_output(state.output);
  set_threads(state.request.threads);
  state.request.data = state.table.given("Data");
  const Json result = evaluate_model(state.request);
  fs::path page;
  if (!state.output.empty()) {
    write_json(state.output, result);
    const Report report = write_eval_report(state.output);
    warn_of_problems(report);
    page = report.path;
  }
  if (state.json) return fmt::print("{}\n", result.dump());
  fmt::print("{}, {} rows: accuracy {:.2f}%, loss {:.4f}", shown_split(result["split"]), result["rows"].get<int64_t>(),
             100 * result["accuracy"].get<double>(), result["loss"].get<double>());
  if (result.contains("bits_per_byte")) fmt::print(", {:.4f} bits per byte", result["bits_per_byte"].get<double>());
  fmt::print("; {:.1f} s\n", result["seconds"].get<double>());
  if (result.contains("classes")) fmt::print("\n{}", class_table(result));
  if (result.contains("parts")) print_parts(result["parts"], result["task"] == "recall" ? "distance" : "tokens before");
  if (!page.empty()) fmt::print("\nwritten to {}; report: {}\n", state.output, page.string());
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto state = std::make_shared<EvalState>();
  CLI::App* command = app.add_subcommand("eval", "Test a trained model on a split of its data, or on other data");
  command->add_option("model", state->request.model, "A run's folder, or a model file")->required()->type_name("MODEL");
  declare(state->table, state->data);
  declare(state->table, state->request);
  declare_output(state->table, state->output, "nothing is written if not given");
  declare_json(state->table, state->json);
  command->footer(
      examples("  strata eval runs/listops-hkt-seed1\n"
               "  strata eval runs/imdb-hkt-seed1 --split valid --json\n"
               "  strata eval runs/imdb-hkt-seed1 --output imdb.json      and imdb.html: confusions, worst errors\n"
               "  strata eval runs/listops-hkt-seed1/best.safetensors --data other_listops.tsv"));
  bind_command(*command, state->table, [state] { run_eval(*state); }, {.has_model = true});
}

}  // namespace strata
