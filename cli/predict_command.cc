#include <fmt/format.h>

#include <iostream>
#include <numbers>

#include "commands.h"
#include "bind.h"
#include "data/task.h"
#include "train/evaluate.h"
#include "train/setup.h"
#include "util/error.h"

namespace strata {
namespace {

struct State {
  std::string model;
  std::vector<std::string> texts, files;
  int64_t top = 5, threads = 0;
};

// What was read, short enough for a line; bytes that are no UTF-8 become question marks in the JSON.
std::string shown(const std::string& input) {
  constexpr size_t kShown = 200;
  return input.size() <= kShown ? input : input.substr(0, kShown) + "...";
}

struct Predictor {
  LoadedModel loaded;
  int64_t top;

  Json operator()(const std::string& input) {
    const ModelCard& card = loaded.card;
    const bool language = card.shape.next_token;
    Dataset data;
    std::vector<Token> tokens = encode_input(card.task, input, card.shape.length);
    const auto read = static_cast<int64_t>(tokens.size());
    if (language) tokens.push_back(kPad);  // a place for the target that a window has
    data.rows.push_back({0, static_cast<int32_t>(tokens.size()), 0});
    data.tokens = std::move(tokens);
    LoaderOptions options;
    options.goal = language ? Goal::kNextToken : Goal::kClassify;
    options.trees = tree_maker(card);
    const Batch batch = make_batch(data, options, 0);
    torch::NoGradGuard no_grad;
    const torch::Tensor outputs = loaded.model->forward(to_input(batch, torch::kCPU)).to(torch::kDouble);
    Json line = {{"input", shown(input)}, {"tokens", read}};
    if (static_cast<int64_t>(input.size()) > read && card.task != "listops") line["cut_at"] = read;
    if (language) return next_bytes(line, torch::log_softmax(outputs[0], -1), batch);
    const torch::Tensor probabilities = torch::softmax(outputs[0], -1);
    const auto best = probabilities.argmax().item<int64_t>();
    line["label"] = card.labels[best];
    line["probability"] = probabilities[best].item<double>();
    for (size_t label = 0; label < card.labels.size(); ++label) {
      line["probabilities"][card.labels[label]] = probabilities[static_cast<int64_t>(label)].item<double>();
    }
    return line;
  }

  Json next_bytes(Json line, const torch::Tensor& log_probabilities, const Batch& batch) const {
    double bits = 0;
    for (int64_t t = 0; t + 1 < batch.width; ++t) {
      bits -= log_probabilities[t][batch.tokens[t + 1]].item<double>() / std::numbers::ln2;
    }
    line["bits_per_byte"] = batch.width > 1 ? Json(bits / static_cast<double>(batch.width - 1)) : Json();
    const auto [values, tokens] = log_probabilities[batch.width - 1].exp().topk(std::min<int64_t>(top, log_probabilities.size(1)));
    line["next"] = Json::array();
    for (int64_t i = 0; i < values.size(0); ++i) {
      const auto byte = tokens[i].item<int64_t>() - 1;
      line["next"].push_back({{"byte", byte},
                              {"text", byte >= 0x20 && byte < 0x7f ? std::string(1, static_cast<char>(byte)) : ""},
                              {"probability", values[i].item<double>()}});
    }
    return line;
  }
};

void print(const Json& line) {
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::fflush(stdout);
}

// One bad input is answered with its error and does not stop the others; the exit code tells.
bool answer(Predictor& predict, const std::string& input) {
  try {
    print(predict(input));
    return true;
  } catch (const Error& error) {
    print({{"input", shown(input)}, {"error", error.what()}});
    return false;
  }
}

void run(const State& state) {
  set_threads(state.threads);
  Predictor predict{load_model(state.model), state.top};
  bool good = true;
  for (const std::string& text : state.texts) good &= answer(predict, text);
  for (const std::string& file : state.files) {
    std::string content = read_file(file);
    while (predict.loaded.card.task != "cifar10" && !content.empty() && content.back() == '\n') content.pop_back();
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
  command->description("Ask a trained model: strata predict MODEL [TEXT ...]. Prints one JSON line per input.\n"
                       "Without any TEXT or --file, every line of standard input is an input.");
  command->add_option("model", state->model, "A run's folder, or a model file")->required()->type_name("MODEL");
  // CLI11 would take a text in square brackets for a list, so texts are what is left over.
  command->allow_extras();
  command->add_option("--file", state->files, "Files, each one input")->type_name("FILE");
  command->add_option("--top", state->top, "Language models: how many next bytes to show")->check(CLI::PositiveNumber)->capture_default_str();
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
