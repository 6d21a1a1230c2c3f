#include <fmt/format.h>

#include <iostream>

#include "bind.h"
#include "commands.h"
#include "data/task.h"
#include "model/system.h"
#include "train/use_model.h"
#include "util/common_options.h"
#include "util/error.h"
#include "util/output.h"

namespace strata {
namespace {

struct PredictState {
  std::string model;
  std::vector<std::string> texts, files;
  int64_t top = 5, threads = 0;
  bool check_digest = true;
  OptionTable table;
};

// Bytes that are not UTF-8 become U+FFFD.
void print(const Json& line) {
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  flush_output();
}

// The answer to a bad input is its error. The other inputs are still answered; the exit code is that of a data error.
bool answer(const Predictor& predict, const std::string& input) {
  try {
    print(predict(input));
    return true;
  } catch (const Error& error) {
    print({{"input", shown_input(input)}, {"error", error.what()}});
    return false;
  }
}

void run_predict(const PredictState& state) {
  set_threads(state.threads);
  const Predictor predict(state.model, state.top, state.check_digest);
  bool good = true;
  for (const std::string& text : state.texts) good &= answer(predict, text);
  const bool has_images = find_task(predict.task()).has_images;  // whose last byte may be a line end
  for (const std::string& file : state.files) {
    std::string content = read_file(file);
    while (!has_images && !content.empty() && content.back() == '\n') content.pop_back();
    good &= answer(predict, content);
  }
  if (state.texts.empty() && state.files.empty()) {
    for (std::string line; std::getline(std::cin, line);) good &= answer(predict, line);
  }
  if (!good) throw data_error("some inputs could not be read; see the field error of their lines");
}

}  // namespace

void add_predict_command(CLI::App& app) {
  auto state = std::make_shared<PredictState>();
  OptionTable& table = state->table;
  CLI::App* command = app.add_subcommand("predict", "Ask a trained model: one JSON line per input");
  command->description(
      "Ask a trained model: strata predict MODEL [TEXT ...]. Prints one JSON line per input.\n"
      "Without any TEXT or --file, every line of standard input is an input.");
  command->add_option("model", state->model, "A run's folder, or a model file")->required()->type_name("MODEL");
  table.begin_group("Input");
  table.add("file", &state->files, {.help = "Files, each one input", .type = "FILE"});
  table.begin_group("Output");
  table.add("top", &state->top, {.help = "Language models: number of next bytes to show", .min = 1, .max = 256});
  declare_threads(table, state->threads);
  declare_check_digest(table, state->check_digest);
  command->footer(
      examples("  strata predict runs/listops-hsa-seed1 \"[MAX 2 [MIN 4 7 ] 0 ]\"\n"
               "  strata predict runs/imdb-hkt-seed1 --file review.txt\n"
               "  cut -f 2 reviews.tsv | strata predict runs/table-hkt-seed1 > answers.jsonl"));
  // Texts are words that belong to no option: as a positional, CLI11 would read a text in square brackets as a list.
  bind_command(*command, table, [state] { run_predict(*state); }, {.words = &state->texts});
}

}  // namespace strata
