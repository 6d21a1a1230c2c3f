#include <fmt/format.h>

#include "bind.h"
#include "commands.h"
#include "inject/experiment.h"
#include "model/system.h"
#include "report/report.h"
#include "util/common_options.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace strata {
namespace {

struct InjectState {
  InjectOptions options;
  OptionTable table;
  std::string folder = "injection";
  bool quiet = false, json = false;
};

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

void print_gaps(const Json& json) {
  const Json &gaps = json["gaps"], &plan = json["plan"];
  fmt::print("\nlayer  injected  tree{:18} KL gap  cost\n", "");
  for (size_t layer = 0; layer < gaps["nats_per_token"].size(); ++layer) {
    const Json& nats = gaps["nats_per_token"][layer];
    std::string words = "no";
    size_t shown = 0;
    for (size_t r = 0; r < nats.size(); ++r) {  // of a layer with softmax: its nearest tree within the budget
      const double budget = json["budget"];
      const bool fits = gaps["costs"][r].get<double>() <= budget,
                 best = nats[r].get<double>() < nats[shown].get<double>();
      if (fits && (best || gaps["costs"][shown].get<double>() > budget)) shown = r;
    }
    size_t choices = 0;
    for (const Json& one : plan) {
      if (one["layer"] != layer) continue;
      words = "yes";
      choices = one["trees"].size();
      for (size_t r = 0; r < nats.size(); ++r) {
        if (gaps["trees"][r] == one["trees"][0]) shown = r;
      }
    }
    fmt::print("{:<5}  {:<8}  {:<21}  {:>6.4f}  {}{}\n", layer, words, gaps["trees"][shown].get<std::string>(),
               nats[shown].get<double>(), percent(gaps["costs"][shown]),
               choices > 1 ? fmt::format(", or another of {} by text", choices) : "");
  }
  fmt::print(
      "\nKL gap: nats per token from softmax, on {} unlabelled texts of {:.0f} tokens. Cost: over flat attention's.\n",
      gaps["texts"].get<int64_t>(), gaps["tokens"].get<double>());
}

std::string shown_score(const Json& json, const Json& point) {
  const double score = point["score"];
  return json["causal"] ? fmt::format("{:.4f}", score) : fmt::format("{:.2f}%", 100 * score);
}

void print_scores(const Json& json) {
  if (!json.contains("before")) return;
  const Json& test = json["test"];
  fmt::print("\n{} test rows of {:.0f} tokens; {}\n\n", test["rows"].get<int64_t>(), test["tokens"].get<double>(),
             test["head"] == "linear" ? fmt::format("a linear head, fitted on {} rows with the original model",
                                                    test["train_rows"].get<int64_t>())
             : test["head"] == "own"  ? "the model's own head"
                                      : "loss of the next token");
  fmt::print("{:<8} {:>16}  {:>12}  {:>16}  {:>22}\n", "", test["measure"].get<std::string>(), "attention",
             "FLOPs a text", "of injected layers");
  for (const char* when : {"before", "after"}) {
    const Json& point = json[when];
    fmt::print("{:<8} {:>16}  {:>12}  {:>16.3g}  {:>22}\n", when, shown_score(json, point),
               percent(point["attention_share"]), point["flops"].get<double>(),
               point.contains("injected_share") ? percent(point["injected_share"]) : "-");
  }
  if (!json.contains("curve")) return;
  const Json &late = json["curve"]["late"], &chosen = json["curve"]["auto"];
  auto cell = [&](const Json& point) {
    return fmt::format("{:>8}{} at {:>6}", shown_score(json, point),
                       point.contains("agreement") ? fmt::format(" ({:>6})", percent(point["agreement"])) : "",
                       percent(point["attention_share"]));
  };
  fmt::print("\nlayers  {:<30}  by the KL gap\n", "late and alternate ones first");
  for (size_t k = 0; k < late.size(); ++k)
    fmt::print("{:<6}  {:<30}  {}  {}\n", k, cell(late[k]), cell(chosen[k]), chosen[k]["layers"].dump());
  if (!json["causal"]) fmt::print("in brackets: share of the rows with the same answer as the original model\n");
}

void print_times(const Json& json) {
  if (!json.contains("time")) return;
  fmt::print("\n{:>6}  {:^26}  {:^26}  {:^26}\n", "", "the operator, ms", "a whole layer, ms", "the whole model, ms");
  fmt::print("{:>6}  {:>9}{:>9}{:>8}  {:>9}{:>9}{:>8}  {:>9}{:>9}{:>8}\n", "tokens", "flat", "HSA", "", "flat", "HSA",
             "", "flat", "HSA", "");
  for (const Json& row : json["time"]) {
    fmt::print("{:>6}", row["tokens"].get<int64_t>());
    for (const char* what : {"operator", "layer", "model"}) {
      if (!row.contains(what)) continue;
      fmt::print("  {:>9.2f}{:>9.2f}{:>7.2f}x", row[what]["flat_ms"].get<double>(), row[what]["hsa_ms"].get<double>(),
                 row[what]["ratio"].get<double>());
    }
    fmt::print("\n");
  }
  for (const Json& row : json["time"]) {
    if (row.contains("model"))
      fmt::print("{}peak memory of a pass over {} tokens: {:.1f} MB, injected {:.1f} MB\n",
                 row == json["time"][0] ? "\n" : "", row["tokens"].get<int64_t>(),
                 row["model"]["flat_bytes"].get<double>() / 1e6, row["model"]["hsa_bytes"].get<double>() / 1e6);
  }
}

void run_inject(InjectState& state) {
  const InjectOptions& options = state.options;
  set_threads(options.threads);
  watch_for_interrupts();
  const fs::path written = fs::path(state.folder) / "inject.json";
  if (fs::exists(written))
    throw output_error("{}: already exists; choose another --folder, or make its page again with strata report {}",
                       written.string(), state.folder);
  make_folder(state.folder);
  Progress progress(state.quiet);
  const Json json = run_injection(options, progress);
  write_json(written, json);
  const Report report = write_inject_report(written);
  warn_of_problems(report);
  if (state.json) {
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}: {} layers, {} heads of {} channels\n", options.model, json["layers"].get<int64_t>(),
             json["heads"].get<int64_t>(), json["hidden"].get<int64_t>() / json["heads"].get<int64_t>());
  print_gaps(json);
  print_scores(json);
  print_times(json);
  fmt::print("\nwritten to {}; report: {}\n", written.string(), report.path.string());
}

}  // namespace

void add_inject_command(CLI::App& app) {
  auto state = std::make_shared<InjectState>();
  OptionTable& table = state->table;
  CLI::App* command = app.add_subcommand("inject", "HSA in a trained transformer: what it costs and saves");
  command->description(
      "Replace softmax by HSA in layers of a trained transformer, without training. Measures cost and savings:\n"
      "strata inject MODEL --train FILE --test FILE. Labels are used only to measure; layers and trees are chosen "
      "without them.");
  command
      ->add_option(
          "model", state->options.model,
          "A Hugging Face folder (BERT, RoBERTa, MiniLM, GPT-2, Llama, Qwen2), or a run's folder with flat attention")
      ->required()
      ->type_name("MODEL");
  declare(table, state->options);
  table.begin_group("Output");
  table.add("folder", &state->folder,
            {.help = "Folder for inject.json and inject.html", .type = "FOLDER", .recorded = false});
  declare_quiet(table, state->quiet);
  declare_json(table, state->json);
  command->footer(examples(
      "  strata inject models/all-MiniLM-L6-v2 --train train.tsv --test test.tsv --label-column 1 --text-column 2\n"
      "  strata inject models/roberta-imdb --test test.csv --layers late --tree sentences\n"
      "  strata inject models/gpt2 --texts novel.txt --layers 9,11 --tree balanced\n"
      "  strata inject runs/imdb-flat-seed1 --test test.jsonl --cut 0.9"));
  bind_command(*command, table, [state] { run_inject(*state); });
}

}  // namespace strata
