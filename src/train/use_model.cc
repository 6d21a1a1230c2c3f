#include "train/use_model.h"

#include <torch/torch.h>

#include <numbers>

#include "data/captions.h"
#include "data/pieces.h"
#include "data/task.h"
#include "train/evaluate.h"
#include "train/record.h"
#include "train/run_folder.h"
#include "train/same_data.h"
#include "util/common_options.h"
#include "util/digest.h"
#include "util/error.h"
#include "util/progress.h"
#include "util/text.h"

namespace strata {

DataConfig data_of_model(const std::string& model, const Json& changes, const ModelCard& card) {
  DataConfig config;
  config.task = card.task;
  config.length = card.shape.length;
  if (card.task == "captions") config.image_side = captions_side(card.shape.length);
  if (!card.label_column.empty()) config.label_column = card.label_column;
  if (!card.text_column.empty()) config.text_column = card.text_column;
  if (fs::exists(fs::path(model) / "run.json")) config = read_run_config({model}).data;
  OptionTable table;
  declare(table, config);
  table.restore(changes, "command line");
  if (config.task != card.task) {
    throw usage_error("--task: expected {1}, the task of {0}, got {2}", model, card.task, config.task);
  }
  table.check_task(config.task, changes);
  if (card.task == "captions" && config.image_side != captions_side(card.shape.length))
    throw usage_error("--image-side: expected {}, that of the model, got {}", captions_side(card.shape.length),
                      config.image_side);
  if (card.task == "cifar10" && card.longest() > 0 && config.length != 0 && config.length != card.shape.length)
    throw usage_error("--length: expected {}, the pixels of the model's images, got {}", card.shape.length,
                      config.length);
  config.tokens = card.tokens();
  config.pieces = card.pieces;
  return config;
}

// The files of a run's record, without those of frozen embeddings: the model has them, and they are not read again.
static Json recorded_data(const RunFolder& run, const DataConfig& config) {
  Json recorded = read_run(run).value("data", Json());
  if (config.embeddings.empty() || !recorded.is_array()) return recorded;
  Json kept = Json::array();
  for (const Json& entry : recorded) {
    const bool has_path = entry.is_object() && entry.contains("path") && entry["path"].is_string();
    const fs::path folder = has_path ? fs::path(entry["path"].get<std::string>()).parent_path() : fs::path();
    if (folder / "" != fs::path(config.embeddings) / "") kept.push_back(entry);
  }
  return kept;
}

ModelData load_model_data(const std::string& model, const Json& changes, const ModelCard& card, bool allow_changed,
                          bool whole) {
  DataConfig config = data_of_model(model, changes, card);
  config.labels = card.labels;
  TaskData data = load_task(config, card.words, whole);
  Json files = describe_files(data.files);
  if (fs::exists(fs::path(model) / "run.json"))
    check_same_data(recorded_data({model}, config), files, allow_changed, /*others=*/!changes.empty());
  return {config, std::move(data), std::move(files)};
}

void declare(OptionTable& table, EvaluateRequest& request) {
  table.begin_group("Evaluation");
  declare_split(table, request.split, /*whole=*/true);
  table.add("batch", &request.batch, {.help = "Rows per batch", .min = 1, .max = 1 << 20});
  declare_threads(table, request.threads);
  declare_changed_data(table, request.allow_changed_data);
  declare_check_digest(table, request.check_digest);
}

Json evaluate_model(const EvaluateRequest& given) {
  EvaluateRequest request = given;
  if (request.split.empty()) request.split = request.data.contains("data") ? "all" : "test";
  LoadedModel loaded = load_model(request.model, request.check_digest);
  auto [config, data, files] =
      load_model_data(request.model, request.data, loaded.card, request.allow_changed_data, request.split == "all");
  if (data.goal == Goal::kClassify && data.labels != loaded.card.labels) {
    throw data_error("expected data with the labels of the model, {1}; got {0}", shown_list(data.labels),
                     shown_list(loaded.card.labels));
  }
  if (const int64_t longest = loaded.card.longest(); longest > 0 && data.length > longest)
    throw usage_error("--length: expected at most {}, the length of the model, whose positions are {}, got {}", longest,
                      loaded.card.config.positions, data.length);
  for (const std::string& problem : describe_problems(data)) Progress().note("warning: " + problem);
  const Dataset& split = data.split(request.split);
  files.push_back(describe_files({model_file(request.model)})[0]);
  EvaluateRequest copy = request;
  OptionTable own;
  declare(own, copy);
  Json record = start_record("eval", model_options(request.model, own, config), "cpu", std::move(files));
  const Clock clock(0);
  const Evaluation result =
      evaluate(loaded.model, loaded.card, split, {.batch = request.batch, .answers = true, .labels = data.labels});
  Json json = {{"model", request.model}, {"task", data.task}, {"split", request.split}};
  json.update(result.to_json());
  if (!result.answers.empty()) json.update(describe_answers(result.answers, data, split));
  if (find_task(data.task).is_scored_by_bits()) json["bits_per_byte"] = result.loss / std::numbers::ln2;
  json["seconds"] = clock.seconds();
  json["record"] = finish_record(std::move(record));
  return json;
}

std::string shown_input(const std::string& input) {
  constexpr size_t kShown = 200;
  return input.size() <= kShown ? input : fmt::format("{}...", std::string_view(input).substr(0, kShown));
}

struct Predictor::State {
  LoadedModel loaded;
  int64_t top;
  TextEncoder encode;  // empty: texts are bytes
};

Predictor::Predictor(const std::string& model, int64_t top, bool check_digest)
    : state_(new State{load_model(model, check_digest), top, {}}) {
  const ModelCard& card = state_->loaded.card;
  if (!card.words.empty()) state_->encode = text_encoder(card.words, card.pieces);
}
Predictor::~Predictor() = default;
const std::string& Predictor::task() const { return state_->loaded.card.task; }

namespace {

// Bits per byte of the input, and the likeliest next bytes. log_p: (tokens, vocabulary)
void add_next_bytes(Json& line, const torch::Tensor& log_p, const Batch& batch, int64_t top) {
  double bits = 0;
  for (int64_t t = 0; t + 1 < batch.width; ++t)
    bits -= log_p[t][batch.tokens[t + 1]].item<double>() / std::numbers::ln2;
  line["bits_per_byte"] = batch.width > 1 ? Json(bits / static_cast<double>(batch.width - 1)) : Json();
  const auto [values, tokens] = log_p[batch.width - 1].exp().topk(std::min<int64_t>(top, log_p.size(1)));
  line["next"] = Json::array();
  for (int64_t i = 0; i < values.size(0); ++i) {
    const auto byte = tokens[i].item<int64_t>() - 1;
    line["next"].push_back({{"byte", byte},
                            {"text", byte >= 0x20 && byte < 0x7f ? std::string(1, static_cast<char>(byte)) : ""},
                            {"probability", values[i].item<double>()}});
  }
}

}  // namespace

Json Predictor::operator()(const std::string& input) const {
  LoadedModel& loaded = state_->loaded;
  const ModelCard& card = loaded.card;
  Dataset data;
  data.tokens = encode_input(card.task, input, card.shape.length, state_->encode);
  const auto read = static_cast<int64_t>(data.tokens.size());
  Json line = {{"input", shown_input(input)}, {"tokens", read}};
  const bool may_cut = card.task != "listops" && !find_task(card.task).has_images;
  if (may_cut && read == card.shape.length) {  // it may be longer
    const size_t whole = state_->encode ? state_->encode(input).size() : input.size();
    if (static_cast<int64_t>(whole) > read) line["cut_at"] = read;
  }
  if (card.shape.next_token) data.tokens.push_back(kPad);  // a place for the target that a window has
  data.rows.push_back({0, static_cast<int32_t>(data.tokens.size()), 0});
  LoaderOptions options;
  options.goal = card.shape.next_token ? Goal::kNextToken : Goal::kClassify;
  options.trees = tree_maker(card);
  const Batch batch = make_batch(data, options, 0);
  torch::NoGradGuard no_grad;
  const torch::Tensor log_p =
      torch::log_softmax(loaded.model->forward(to_input(batch, torch::kCPU)).to(torch::kDouble), -1)[0];
  if (card.shape.next_token) {
    add_next_bytes(line, log_p, batch, state_->top);
    return line;
  }
  const torch::Tensor p = log_p.exp();
  const auto best = p.argmax().item<int64_t>();
  line["label"] = card.labels[best];
  line["probability"] = p[best].item<double>();
  for (size_t label = 0; label < card.labels.size(); ++label) {
    line["probabilities"][card.labels[label]] = p[static_cast<int64_t>(label)].item<double>();
  }
  return line;
}

}  // namespace strata
