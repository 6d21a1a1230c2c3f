#include <fmt/format.h>

#include <iostream>

#include "bind.h"
#include "commands.h"
#include "generate/generator.h"
#include "train/system.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/progress.h"

namespace strata {
namespace {

struct State {
  std::string model, file;
  std::vector<std::string> prompt;  // what is left over, as in predict
  GenerateOptions options;
  int64_t threads = 0;
  bool quiet = false, json = false;
};

Json to_json(const std::string& prompt, const Generated& made) {
  return {{"prompt", prompt},        {"text", made.text},
          {"ended", made.ended},     {"prompt_tokens", made.prompt_tokens},
          {"tokens", made.tokens},   {"prompt_seconds", made.prompt_seconds},
          {"seconds", made.seconds}, {"cache_bytes", made.cache_bytes}};
}

void run(const State& state) {
  set_threads(state.threads);
  if (state.prompt.size() > 1)
    throw usage_error("expected one prompt, got {}; put it into quotes", state.prompt.size());
  if (!state.prompt.empty() && !state.file.empty()) throw usage_error("--file: expected a prompt or a file, got both");
  const std::string prompt = !state.file.empty()    ? read_file(state.file)
                             : state.prompt.empty() ? std::string()
                                                    : state.prompt[0];
  Generator generate(state.model, state.options);
  watch_for_interrupts();
  if (!state.json) std::cout << prompt << std::flush;
  const Generated made = generate(prompt, [&](std::string_view piece) {
    if (!state.json) std::cout << piece << std::flush;
  });
  if (state.json) {
    fmt::print("{}\n", to_json(prompt, made).dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    std::cout << "\n";
    Progress(state.quiet)
        .note(fmt::format("{} tokens in {:.2f} s ({:.1f} a second) behind a prompt of {} in {:.2f} s; ended by {}; the "
                          "caches hold {:.2f} MB",
                          made.tokens, made.seconds, static_cast<double>(made.tokens) / std::max(made.seconds, 1e-9),
                          made.prompt_tokens, made.prompt_seconds,
                          made.ended == "tokens" ? "--tokens"
                          : made.ended == "stop" ? "--stop"
                                                 : "an " + made.ended,
                          static_cast<double>(made.cache_bytes) / 1e6));
  }
  if (made.ended == "interrupt") throw Error(ExitCode::kInterrupted, "interrupted");
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto state = std::make_shared<State>();
  GenerateOptions& o = state->options;
  CLI::App* command = app.add_subcommand("generate", "Text from GPT-2, or from a language model of yours");
  command->description(
      "Text from a language model: strata generate MODEL [PROMPT]. Prints the prompt and what the model writes behind "
      "it,\n"
      "as it comes.");
  command->add_option("model", state->model, "A GPT-2 folder as Hugging Face has it, or a run's folder (--task text)")
      ->required()
      ->type_name("MODEL");
  command->allow_extras();
  command->add_option("--file", state->file, "The prompt, from a file")->type_name("FILE");
  command->add_option("--tokens", o.tokens, "Tokens at most")->check(CLI::PositiveNumber)->capture_default_str();
  command
      ->add_option("--temperature", o.sample.temperature,
                   "Below 1 likelier tokens, above 1 bolder ones; 0: always the likeliest")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", o.sample.top_k, "Only the k likeliest tokens; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-p", o.sample.top_p, "Only the likeliest tokens that together have this probability")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  command->add_option("--seed", o.seed, "The same seed writes the same text")->capture_default_str();
  command->add_option("--stop", o.stops, "A text that ends it, and is not printed; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command
      ->add_option("--layers", o.layers,
                   "GPT-2: layers that attend by streaming HSA: none, late, or numbers from 0: 9,11")
      ->capture_default_str();
  command->add_option("--branching", o.branching, "Of these: children of a family")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  command->add_option("--threads", state->threads, "CPU threads; 0: all cores");
  command->add_flag("--json", state->json, "Print one JSON line at the end");
  command->add_flag("--quiet", state->quiet, "No line about time and memory");
  command->footer(
      examples("  strata generate models/gpt2 \"The old house\" --top-p 0.9 --tokens 100\n"
               "  strata generate models/gpt2 --file letter.txt --layers late --temperature 0.8\n"
               "  strata generate runs/text-hsa-seed1 \"ROMEO:\" --temperature 0.7 --stop \"JULIET:\""));
  command->callback([state, command] {
    state->prompt = command->remaining();
    for (const std::string& text : state->prompt) {
      if (text.rfind("--", 0) == 0) throw usage_error("{}: not an option of generate", text);
    }
    run(*state);
  });
}

}  // namespace strata
