#include <fmt/format.h>

#include "bind.h"
#include "commands.h"
#include "generate/generator.h"
#include "model/system.h"
#include "util/common_options.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/output.h"
#include "util/progress.h"

namespace strata {
namespace {

struct GenerateState {
  std::string model, file;
  std::vector<std::string> prompt;  // the words that belong to no option, as in predict
  GenerateOptions options;
  OptionTable table;
  int64_t threads = 0;
  bool quiet = false, json = false;
};

Json to_json(const std::string& prompt, const Generated& made) {
  Json json = {{"prompt", prompt},        {"text", made.text},
               {"ended", made.ended},     {"prompt_tokens", made.prompt_tokens},
               {"tokens", made.tokens},   {"prompt_seconds", made.prompt_seconds},
               {"seconds", made.seconds}, {"cache_bytes", made.cache_bytes},
               {"ids", made.ids}};
  if (made.cache_nodes > 0) {
    json["cache_nodes"] = made.cache_nodes;
    json["cache_node_bytes"] = made.node_bytes;
    json["every_token_bytes"] = made.every_token_bytes;
  }
  return json;
}

// "caches: 1.05 MB", and of caches of nodes how little of the text that is.
std::string cache_note(const Generated& made) {
  auto megabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  if (made.cache_nodes == 0) return fmt::format("caches: {:.2f} MB", megabytes(made.cache_bytes));
  return fmt::format(
      "cache: {} nodes in each layer, {:.3f} MB, where keys and values of every token would take {:.3f} MB",
      made.cache_nodes, megabytes(made.node_bytes), megabytes(made.every_token_bytes));
}

void run_generate(const GenerateState& state) {
  set_threads(state.threads);
  if (state.prompt.size() > 1)
    throw usage_error("expected one prompt, got {} words; put the prompt in quotes", state.prompt.size());
  if (!state.prompt.empty() && !state.file.empty()) throw usage_error("--file: expected a prompt or --file, got both");
  const std::string prompt = !state.file.empty()    ? read_file(state.file)
                             : state.prompt.empty() ? std::string()
                                                    : state.prompt[0];
  Generator generate(state.model, state.options);
  watch_for_interrupts();
  auto write = [&](std::string_view piece) {
    if (state.json) return;
    fmt::print("{}", piece);
    flush_output();
  };
  write(prompt);
  const Generated made = generate(prompt, write);
  if (state.json) {
    fmt::print("{}\n", to_json(prompt, made).dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    write("\n");
    Progress(state.quiet)
        .note(fmt::format(
            "{} tokens in {:.2f} s ({:.1f} per second) after a prompt of {} tokens in {:.2f} s; ended by {}; {}",
            made.tokens, made.seconds, static_cast<double>(made.tokens) / std::max(made.seconds, 1e-9),
            made.prompt_tokens, made.prompt_seconds,
            made.ended == "tokens" ? "--tokens"
            : made.ended == "stop" ? "--stop"
                                   : "an " + made.ended,
            cache_note(made)));
  }
  if (made.ended == "interrupt") throw Error(ExitCode::kInterrupted, "interrupted");
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto state = std::make_shared<GenerateState>();
  OptionTable& table = state->table;
  CLI::App* command = app.add_subcommand("generate", "Text from GPT-2, Llama, Qwen2, or a language model of yours");
  command->description(
      "Text from a language model: strata generate MODEL [PROMPT]. Prints the prompt and the text that the model "
      "writes "
      "after it,\n"
      "token by token.");
  command
      ->add_option("model", state->model,
                   "A Hugging Face folder of GPT-2, Llama or Qwen2, or a run's folder (--task text)")
      ->required()
      ->type_name("MODEL");
  table.begin_group("Input");
  table.add("file", &state->file, {.help = "A file with the prompt", .type = "FILE"});
  declare(table, state->options);
  declare_threads(table, state->threads);
  declare_quiet(table, state->quiet);
  declare_json(table, state->json);
  command->footer(
      examples("  strata generate models/gpt2 \"The old house\" --top-p 0.9 --tokens 100\n"
               "  strata generate models/gpt2 --file letter.txt --layers late --temperature 0.8\n"
               "  strata generate models/Qwen2.5-0.5B \"The old house\" --temperature 0\n"
               "  strata generate runs/text-hsa-seed1 \"ROMEO:\" --temperature 0.7 --stop \"JULIET:\""));
  bind_command(*command, table, [state] { run_generate(*state); }, {.words = &state->prompt});
}

}  // namespace strata
