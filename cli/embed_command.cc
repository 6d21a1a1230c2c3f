#include <fmt/format.h>

#include <iostream>
#include <sstream>

#include "bind.h"
#include "commands.h"
#include "inject/embed.h"
#include "train/system.h"
#include "train/use_model.h"
#include "util/error.h"
#include "util/progress.h"

namespace strata {
namespace {

struct State {
  std::string model, file, output;
  EmbedOptions options;
  int64_t batch = 32, threads = 0;
  bool quiet = false, approximate_special = false;
};

std::vector<std::string> lines_of(std::istream& in) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line); lines.push_back(line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
  }
  return lines;
}

void print(const std::string& text, const Embedding& row) {
  Json line = {{"text", shown_input(text)}, {"tokens", row.tokens}, {"embedding", row.values}};
  if (row.cut) line["cut_at"] = row.tokens;
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void run(const State& state) {
  set_threads(state.threads);
  const bool npy = !state.output.empty();
  if (npy && fs::path(state.output).extension() != ".npy")
    throw usage_error("--output: expected a name that ends in .npy, got {}", state.output);
  const Embedder embed(state.model, state.options);
  std::vector<std::string> texts;
  if (state.file.empty()) {
    texts = lines_of(std::cin);
  } else {
    std::istringstream content(read_file(state.file));
    texts = lines_of(content);
  }
  if (texts.empty()) throw data_error("no texts: expected one per line");
  Progress progress(state.quiet);
  const Clock clock(0);
  std::vector<Embedding> rows;
  int64_t cut = 0;
  const auto count = static_cast<int64_t>(texts.size());
  for (int64_t first = 0; first < count; first += state.batch) {
    const int64_t last = std::min(first + state.batch, count);
    const std::vector<Embedding> done = embed({texts.begin() + first, texts.begin() + last});
    for (size_t i = 0; i < done.size(); ++i) {
      cut += done[i].cut ? 1 : 0;
      if (!npy) print(texts[first + static_cast<int64_t>(i)], done[i]);
    }
    if (npy) rows.insert(rows.end(), done.begin(), done.end());
    progress.show(fmt::format("{} {}/{} texts  {} left", bar(static_cast<double>(last) / static_cast<double>(count)),
                              last, count, clock.left(last, count)));
  }
  progress.finish();
  if (cut > 0)
    progress.note(fmt::format("{} of {} texts were longer than {} tokens and were cut", cut, count, embed.longest()));
  if (npy) {
    write_file(state.output, to_npy(rows, embed.size()));
    progress.note(fmt::format("{} x {} numbers written to {}", count, embed.size(), state.output));
  }
}

}  // namespace

void add_embed_command(CLI::App& app) {
  auto state = std::make_shared<State>();
  CLI::App* command = app.add_subcommand("embed", "Sentence embeddings of a pretrained encoder");
  command->description(
      "Sentence embeddings of a pretrained encoder: strata embed FOLDER. Every line of --file, or of standard input, "
      "is a\n"
      "text; prints one JSON line each, or writes a matrix with --output. The embedding is the mean of the last hidden "
      "states.");
  command->add_option("model", state->model, "A Hugging Face folder of a BERT, RoBERTa or MiniLM model")
      ->required()
      ->type_name("FOLDER");
  command->add_option("--file", state->file, "Texts, one per line; standard input if not given")->type_name("FILE");
  command->add_option("--output", state->output, "A .npy file for all embeddings, in place of JSON lines")
      ->type_name("FILE");
  command
      ->add_option("--layers", state->options.layers,
                   "Layers that attend by HSA on a tree of the text: none, late, or numbers from 0: 3,5")
      ->capture_default_str();
  command->add_option("--tree", state->options.tree, "Tree of the text")
      ->check(CLI::IsMember({"sentences", "balanced", "windows"}))
      ->capture_default_str();
  command->add_option("--branching", state->options.branching, "Children of a family at most")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  command->add_flag("--approximate-special", state->approximate_special,
                    "Special tokens attend by the tree as well; otherwise to all tokens, as in the original");
  command->add_option("--length", state->options.length, "Tokens of a text at most; 0: as many as the model reads")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--normalize", state->options.normalize, "Embeddings of length 1");
  command->add_option("--batch", state->batch, "Texts at a time")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--threads", state->threads, "CPU threads; 0: all cores");
  command->add_flag("--quiet", state->quiet, "No progress");
  command->footer(
      examples("  strata embed models/all-MiniLM-L6-v2 --file sentences.txt > embeddings.jsonl\n"
               "  strata embed models/all-MiniLM-L6-v2 --layers late --output embeddings.npy < sentences.txt"));
  command->callback([state, command] {
    refuse_extras(*command);
    state->options.exact_special = !state->approximate_special;
    run(*state);
  });
}

}  // namespace strata
