#include <fmt/format.h>

#include <iostream>
#include <sstream>

#include "bind.h"
#include "commands.h"
#include "inject/embed.h"
#include "model/system.h"
#include "train/record.h"
#include "train/use_model.h"
#include "util/common_options.h"
#include "util/error.h"
#include "util/output.h"
#include "util/progress.h"

namespace strata {
namespace {

struct EmbedState {
  std::string model, file, output;
  EmbedOptions options;
  OptionTable table;
  bool quiet = false;
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

std::vector<std::string> read_texts(const std::string& file) {
  std::vector<std::string> texts;
  if (file.empty()) {
    texts = lines_of(std::cin);
  } else {
    std::istringstream content(read_file(file));
    texts = lines_of(content);
  }
  if (texts.empty()) throw data_error("no texts: expected one per line");
  return texts;
}

// The matrix, and beside it the record of how it was made: e.npy, e.npy.json.
void write_matrix(const EmbedState& state, const std::vector<Embedding>& rows, int64_t size, const Json& record) {
  write_file(state.output, to_npy(rows, size));
  write_json(state.output + ".json", {{"rows", rows.size()}, {"size", size}, {"record", finish_record(record)}});
}

Json record_of(const EmbedState& state) {
  Json options = {{"model", state.model}};
  options.update(state.table.record());
  std::vector<fs::path> read = {state.model};
  if (!state.file.empty()) read.emplace_back(state.file);
  return start_record("embed", options, "cpu", read);
}

void run_embed(const EmbedState& state) {
  set_threads(state.options.threads);
  const bool npy = !state.output.empty();
  if (npy && fs::path(state.output).extension() != ".npy")
    throw usage_error("--output: expected a name that ends in .npy, got {}", state.output);
  const Embedder embed(state.model, state.options);
  const std::vector<std::string> texts = read_texts(state.file);
  const Json record = npy ? record_of(state) : Json();
  Progress progress(state.quiet);
  const Clock clock(0);
  std::vector<Embedding> rows;
  int64_t cut = 0;
  const auto count = static_cast<int64_t>(texts.size());
  for (int64_t first = 0; first < count; first += state.options.batch) {
    const int64_t last = std::min(first + state.options.batch, count);
    const std::vector<Embedding> done = embed({texts.begin() + first, texts.begin() + last});
    for (size_t i = 0; i < done.size(); ++i) {
      cut += done[i].cut ? 1 : 0;
      if (!npy) print(texts[first + static_cast<int64_t>(i)], done[i]);
    }
    flush_output();
    if (npy) rows.insert(rows.end(), done.begin(), done.end());
    progress.show(fmt::format("{} {}/{} texts  {} left", bar(static_cast<double>(last) / static_cast<double>(count)),
                              last, count, clock.left(last, count)));
  }
  progress.finish();
  if (cut > 0)
    progress.note(fmt::format("{} of {} texts were longer than {} tokens and were cut", cut, count, embed.longest()));
  if (npy) {
    write_matrix(state, rows, embed.size(), record);
    progress.note(fmt::format("{} x {} numbers written to {}", count, embed.size(), state.output));
  }
}

}  // namespace

void add_embed_command(CLI::App& app) {
  auto state = std::make_shared<EmbedState>();
  CLI::App* command = app.add_subcommand("embed", "Sentence embeddings of a pretrained encoder");
  command->description(
      "Sentence embeddings of a pretrained encoder: strata embed FOLDER. Every line of --file, or of standard input, "
      "is a\n"
      "text; prints one JSON line each, or writes a matrix with --output. The embedding is the mean of the last hidden "
      "states.");
  command->add_option("model", state->model, "A Hugging Face folder of a BERT, RoBERTa or MiniLM model")
      ->required()
      ->type_name("FOLDER");
  OptionTable& table = state->table;
  table.begin_group("Input");
  table.add("file", &state->file, {.help = "Texts, one per line; standard input if not given", .type = "FILE"});
  declare(table, state->options);
  table.begin_group("Output");
  table.add("output", &state->output,
            {.help = "A .npy file for all embeddings, in place of JSON lines; its record goes to FILE.json",
             .type = "FILE",
             .recorded = false});
  declare_quiet(table, state->quiet);
  command->footer(
      examples("  strata embed models/all-MiniLM-L6-v2 --file sentences.txt > embeddings.jsonl\n"
               "  strata embed models/all-MiniLM-L6-v2 --layers late --output embeddings.npy < sentences.txt"));
  bind_command(*command, table, [state] { run_embed(*state); });
}

}  // namespace strata
