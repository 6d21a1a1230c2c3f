#include <fmt/format.h>

#include <numbers>

#include "bind.h"
#include "commands.h"
#include "data/task.h"
#include "train/evaluate.h"
#include "train/progress.h"
#include "train/setup.h"
#include "train/trainer.h"
#include "util/error.h"

namespace strata {
namespace {

struct State {
  std::string model, split = "test";
  DataConfig data;
  OptionTable table;
  int64_t batch = 128, threads = 0;
  bool json = false;
};

// The data a run was trained on, with what the command line says instead.
DataConfig data_of(State& state, const ModelCard& card) {
  DataConfig config;
  config.task = card.task;
  config.length = card.shape.length;
  if (fs::exists(fs::path(state.model) / "run.json")) config = read_run_config({state.model}).data;
  OptionTable table;
  declare(table, config);
  for (const Option& option : state.table.options()) {
    if (!option.given) continue;
    Json one = Json::object();
    one[option.name] = option.value();
    table.restore(one, "command line");
  }
  if (config.task != card.task) {
    throw usage_error("--task: {} is a model of {}, and the task is {}", state.model, card.task, config.task);
  }
  return config;
}

void run(State& state) {
  set_threads(state.threads);
  LoadedModel loaded = load_model(state.model);
  const TaskData data = load_task(data_of(state, loaded.card));
  if (data.labels != loaded.card.labels) {
    throw data_error("the data has other labels than the model: {} against {}", fmt::join(data.labels, ", "), fmt::join(loaded.card.labels, ", "));
  }
  if (data.length > loaded.card.shape.length) {
    throw usage_error("--length: the model reads {} tokens at most, got {}", loaded.card.shape.length, data.length);
  }
  for (const std::string& problem : describe_problems(data)) Progress().note("warning: " + problem);
  const Dataset& split = state.split == "test" ? data.test : state.split == "valid" ? data.valid : data.train;
  const Clock clock(0);
  const Evaluation result = evaluate(loaded.model, loaded.card, split, {state.batch, false});
  if (state.json) {
    Json json = {{"model", state.model}, {"split", state.split}};
    json.update(result.to_json());
    json["seconds"] = clock.seconds();
    fmt::print("{}\n", json.dump());
    return;
  }
  fmt::print("{} split, {} rows: accuracy {:.2f}%, loss {:.4f}{}; {:.1f} s\n", state.split, result.rows, 100 * result.accuracy, result.loss,
             data.goal == Goal::kNextToken ? fmt::format(", {:.3f} bits per byte", result.loss / std::numbers::ln2) : "", clock.seconds());
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto state = std::make_shared<State>();
  CLI::App* command = app.add_subcommand("eval", "Test a trained model on a split of its data, or on other data");
  declare(state->table, state->data);
  bind_options(*command, state->table);
  command->add_option("model", state->model, "A run's folder, or a model file")->required()->type_name("MODEL");
  command->add_option("--split", state->split, "Which rows")->check(CLI::IsMember({"train", "valid", "test"}))->capture_default_str();
  command->add_option("--batch", state->batch, "Rows a batch")->check(CLI::PositiveNumber)->capture_default_str();
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
