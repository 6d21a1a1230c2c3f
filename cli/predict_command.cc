#include <fmt/format.h>

#include <iostream>

#include "bind.h"
#include "commands.h"
#include "train/system.h"
#include "train/use_model.h"
#include "util/error.h"

namespace strata {
namespace {

struct State {
  std::string model;
  std::vector<std::string> texts, files;
  int64_t top = 5, threads = 0;
};

// Bytes that are no UTF-8 become question marks.
void print(const Json& line) {
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::fflush(stdout);
}

// One bad input is answered with its error and does not stop the others; the exit code tells.
bool answer(const Predictor& predict, const std::string& input) {
  try {
    print(predict(input));
    return true;
  } catch (const Error& error) {
    print({{"input", shown_input(input)}, {"error", error.what()}});
    return false;
  }
}

void run(const State& state) {
  set_threads(state.threads);
  const Predictor predict(state.model, state.top);
  bool good = true;
  for (const std::string& text : state.texts) good &= answer(predict, text);
  for (const std::string& file : state.files) {
    std::string content = read_file(file);
    while (predict.task() != "cifar10" && !content.empty() && content.back() == '\n') content.pop_back();
    good &= answer(predict, content);
  }
  if (state.texts.empty() && state.files.empty()) {
    for (std::string line; std::getline(std::cin, line);) good &= answer(predict, line);
  }
  if (!good) throw data_error("some inputs could not be read; their lines say why");
}

}  // namespace

void add_predict_command(CLI::App& app) {
  auto state = std::make_shared<State>();
  CLI::App* command = app.add_subcommand("predict", "Ask a trained model: one JSON line per input");
  command->description(
      "Ask a trained model: strata predict MODEL [TEXT ...]. Prints one JSON line per input.\n"
      "Without any TEXT or --file, every line of standard input is an input.");
  command->add_option("model", state->model, "A run's folder, or a model file")->required()->type_name("MODEL");
  // CLI11 would take a text in square brackets for a list, so texts are what is left over.
  command->allow_extras();
  command->add_option("--file", state->files, "Files, each one input")->type_name("FILE");
  command->add_option("--top", state->top, "Language models: how many next bytes to show")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--threads", state->threads, "CPU threads; 0: all cores");
  command->footer(
      examples("  strata predict runs/listops-hsa-seed1 \"[MAX 2 [MIN 4 7 ] 0 ]\"\n"
               "  strata predict runs/imdb-hkt-seed1 --file review.txt\n"
               "  cut -f 2 reviews.tsv | strata predict runs/table-hkt-seed1 > answers.jsonl"));
  command->callback([state, command] {
    state->texts = command->remaining();
    for (const std::string& text : state->texts) {
      if (text.rfind("--", 0) == 0) throw usage_error("{}: not an option of predict", text);
    }
    run(*state);
  });
}

}  // namespace strata
