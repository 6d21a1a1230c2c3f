#include <fmt/format.h>

#include "bind.h"
#include "commands.h"
#include "train/system.h"
#include "train/use_model.h"

namespace strata {
namespace {

struct State {
  EvaluateRequest request;
  DataConfig data;
  OptionTable table;
  int64_t threads = 0;
  bool json = false;
};

void run(State& state) {
  set_threads(state.threads);
  state.request.data = state.table.given();
  const Json result = evaluate_model(state.request);
  if (state.json) return fmt::print("{}\n", result.dump());
  fmt::print("{} split, {} rows: accuracy {:.2f}%, loss {:.4f}", state.request.split, result["rows"].get<int64_t>(),
             100 * result["accuracy"].get<double>(), result["loss"].get<double>());
  if (result.contains("bits_per_byte")) fmt::print(", {:.4f} bits per byte", result["bits_per_byte"].get<double>());
  fmt::print("; {:.1f} s\n", result["seconds"].get<double>());
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto state = std::make_shared<State>();
  CLI::App* command = app.add_subcommand("eval", "Test a trained model on a split of its data, or on other data");
  declare(state->table, state->data);
  bind_options(*command, state->table);
  command->add_option("model", state->request.model, "A run's folder, or a model file")->required()->type_name("MODEL");
  command->add_option("--split", state->request.split, "Which rows")
      ->check(CLI::IsMember({"train", "valid", "test"}))
      ->capture_default_str();
  command->add_option("--batch", state->request.batch, "Rows a batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--threads", state->threads, "CPU threads; 0: all cores");
  command->add_flag("--json", state->json, "Print JSON");
  command->footer(
      examples("  strata eval runs/listops-hkt-seed1\n"
               "  strata eval runs/imdb-hkt-seed1 --split valid --json\n"
               "  strata eval runs/listops-hkt-seed1/best.safetensors --data other_listops.tsv"));
  command->callback([state, command] {
    refuse_extras(*command);
    run(*state);
  });
}

}  // namespace strata
