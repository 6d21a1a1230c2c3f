#include <fmt/format.h>

#include <numbers>
#include <optional>

#include "bind.h"
#include "commands.h"
#include "data/task.h"
#include "inspect/track_scores.h"
#include "report/report.h"
#include "train/launch.h"
#include "train/placement.h"
#include "train/trainer.h"
#include "util/common_options.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/progress.h"

namespace strata {
namespace {

struct TrainState {
  RunConfig run;
  OptionTable table;
  std::string folder, resume;
  CLI::Option* resume_flag = nullptr;
  bool quiet = false, json = false, allow_changed_data = false;
  int64_t processes = 0;
  TrainCall call;  // its options of several processes
};

void print_result(const Json& result) {
  const Json& test = result.at("test");
  const auto task = result.at("task").get<std::string>();
  const double loss = test.at("loss"), accuracy = test.at("accuracy");
  const std::string score =
      find_task(task).is_scored_by_bits()
          ? fmt::format("{:.4f} bits per byte, {:.2f}% of the bytes correct", loss / std::numbers::ln2, 100 * accuracy)
          : fmt::format("accuracy {:.2f}%, loss {:.4f}", 100 * accuracy, loss);
  fmt::print("{}, {} attention, seed {}: test {} on {} rows\n", task, result.at("attention").get<std::string>(),
             result.at("seed").get<int64_t>(), score, test.at("rows").get<int64_t>());
  fmt::print("{} steps in {} ({:.1f} ms per step), {} parameters; best at step {}\n", result.at("steps").get<int64_t>(),
             duration(result.at("train_seconds")), result.at("step_milliseconds").get<double>(),
             result.at("parameters").get<int64_t>(), result.at("best_step").get<int64_t>());
}

void run_train(TrainState& state) {
  const bool resuming = state.resume_flag->count() > 0;
  if (resuming) {
    if (state.resume.empty()) throw usage_error("--resume: expected the folder of a run, got an empty name");
    if (state.table.find("folder")->given)
      throw usage_error("--folder: a resumed run stays in its folder, {}; remove --folder", state.resume);
    for (const Option& option : state.table.options()) {
      if (option.given && option.note.recorded)
        throw usage_error("{}: a resumed run keeps its options; remove it, or start a new run", option.flag());
    }
    state.folder = state.resume;
    state.run = read_run_config({state.resume});
  }
  if (!resuming && state.allow_changed_data)
    throw usage_error(
        "--allow-changed-data: a new run has no recorded data; remove it, or resume with --resume FOLDER");
  if (state.folder.empty()) {
    state.folder =
        fmt::format("runs/{}-{}-seed{}", state.run.data.task, state.run.model.attention, state.run.train.seed);
  }
  watch_for_interrupts();
  const std::optional<Placement> place = find_placement();
  if (state.processes > 0 && !is_launched()) {
    if (place.has_value())
      throw usage_error("--processes: torchrun, mpirun or srun has already started {} processes; remove it",
                        place->size);
    return launch_processes(state.processes);
  }
  state.call.resume = resuming;
  state.call.allow_changed_data = state.allow_changed_data;
  state.call.quiet = state.quiet;
  state.call.tracker = track_scores;
  const Json result = train(state.run, {state.folder}, state.call);
  if (place.has_value() && !place->is_writer()) return;
  if (state.json) {
    fmt::print("{}\n", result.dump());
  } else {
    print_result(result);
  }
  const Report page = write_train_report(state.folder);  // last, so that a full disk costs only the page
  warn_of_problems(page);
  if (!state.json) fmt::print("written to {}; report: {}\n", state.folder, page.path.string());
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto state = std::make_shared<TrainState>();
  CLI::App* command = app.add_subcommand("train", "Train one model on one task");
  OptionTable& table = state->table;
  declare(table, state->run);
  declare_changed_data(table, state->allow_changed_data);
  table.begin_group("Several processes");
  table.add("processes", &state->processes,
            {.help = "Train by this many processes of this machine, each with a part of every batch",
             .min = 0,
             .max = 4096,
             .recorded = false});
  table.add("timeout", &state->call.timeout,
            {.help = "Seconds after which a process that does not answer ends the run",
             .min = 1,
             .max = 1e6,
             .recorded = false});
  table.add("shard_optimizer", &state->call.shard_optimizer,
            {.help = "Every process keeps a part of AdamW's moments only", .recorded = false});
  table.begin_group("Output");
  table.add(
      "folder", &state->folder,
      {.help = "Folder of the run; runs/TASK-ATTENTION-seedSEED if not given", .type = "FOLDER", .recorded = false});
  declare_quiet(table, state->quiet);
  declare_json(table, state->json);
  state->resume_flag =
      command->add_option("--resume", state->resume, "Continue the run in this folder, to the same bits");
  state->resume_flag->type_name("FOLDER");
  command->footer(
      examples("  strata train --attention hsa --seed 2\n"
               "  strata train --task imdb --length 1024 --model-size 128 --epochs 8 --attention hkt\n"
               "  strata train --task table --data reviews.csv --label-column stars --text-column review\n"
               "  strata train --task text --data book.txt --attention hkt --length 512\n"
               "  strata train --resume runs/imdb-hkt-seed1"));
  bind_command(*command, table, [state] { run_train(*state); });
}

}  // namespace strata
