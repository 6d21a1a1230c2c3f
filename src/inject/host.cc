#include "inject/host.h"

#include <algorithm>

#include "data/pieces.h"
#include "data/task.h"
#include "data/trees.h"
#include "inject/inject.h"
#include "model/hkt_attention.h"
#include "model/model_file.h"
#include "util/error.h"

namespace strata {
namespace {

using torch::Tensor;

// (batch): - sum log p(next token), over the real tokens. logits: (batch, tokens, vocabulary)
Tensor next_token_loss(const Tensor& logits, const Tensor& ids, const Tensor& lengths) {
  if (ids.size(1) < 2) return torch::zeros({ids.size(0)});
  const int64_t last = ids.size(1) - 1;
  const Tensor log_p = torch::log_softmax(logits.narrow(1, 0, last), -1);
  const Tensor nats = -log_p.gather(-1, ids.narrow(1, 1, last).unsqueeze(-1)).squeeze(-1);
  const Tensor real = torch::arange(1, last + 1).unsqueeze(0) < lengths.unsqueeze(1);
  return torch::where(real, nats, torch::zeros_like(nats)).sum(-1);
}

class PretrainedHost : public Host {
 public:
  PretrainedHost(const std::filesystem::path& folder, int64_t length, bool check_digest)
      : model_(Pretrained::load(folder, check_digest)), tokenizer_(tokenizer_of(folder, model_.config())) {
    const PretrainedConfig& config = model_.config();
    longest_ = length > 0 ? std::min(length, config.longest()) : config.longest();
    if (model_.has_classes()) labels_ = config.labels;
  }

  int64_t layers() const override { return model_.config().layers; }
  int64_t heads() const override { return model_.config().heads; }
  int64_t key_heads() const override { return model_.config().key_heads; }
  int64_t head_size() const override { return model_.config().head_size; }
  int64_t hidden() const override { return model_.config().hidden; }
  bool is_causal() const override { return model_.config().is_causal(); }
  int64_t positions() const override { return model_.config().longest(); }
  const std::vector<std::string>& labels() const override { return labels_; }
  bool has_features() const override { return true; }

  HostText read(const std::string& text) const override {
    HostText read{text, tokenizer_.encode(text), {}, false};
    read.cut = read.tokens() > longest_;
    if (read.cut) read.encoding = tokenizer_.encode(text, true, longest_);
    for (int64_t t = 0; t < read.tokens(); ++t) {
      if (tokenizer_.is_special(read.encoding.ids[t])) read.special.push_back(t);
    }
    return read;
  }

  std::vector<std::string> show(const HostText& text) const override {
    std::vector<std::string> shown;
    for (const TextRange& place : text.encoding.places)
      shown.push_back(place.begin < place.end ? text.text.substr(place.begin, place.end - place.begin) : "*");
    return shown;
  }

  Tree natural_tree(const HostText& text, int64_t branching) const override {
    return sentence_tree(text.text, text.encoding, branching);
  }

  using Host::run;
  HostOutput run(const Tensor& ids, const Tensor& lengths, const AttentionFunction& attention) override {
    torch::NoGradGuard no_grad;
    model_.attention = attention;
    const Tensor last = model_.hidden_states(ids, lengths).back();
    HostOutput output{model_.mean_pooled(last, lengths), model_.class_logits(last), {}};
    if (is_causal()) output.loss = loss_of(last, ids, lengths);
    return output;
  }

 private:
  // Some tokens at a time: the logits of all of them, of a large vocabulary, would take gigabytes.
  Tensor loss_of(const Tensor& last, const Tensor& ids, const Tensor& lengths) const {
    constexpr int64_t kTokens = 256;
    const Tensor losses = torch::zeros({ids.size(0)});
    for (int64_t row = 0; row < ids.size(0); ++row) {
      const int64_t length = lengths[row].item<int64_t>();
      for (int64_t first = 0; first + 1 < length; first += kTokens) {
        const int64_t count = std::min(kTokens, length - 1 - first);  // tokens that have a next one
        const Tensor logits = model_.next_token_logits(last.narrow(0, row, 1).narrow(1, first, count));
        losses[row] +=
            torch::cross_entropy_loss(logits[0], ids[row].narrow(0, first + 1, count), {}, at::Reduction::Sum);
      }
    }
    return losses;
  }

  Pretrained model_;
  Tokenizer tokenizer_;
  std::vector<std::string> labels_;
};

// A model trained by strata. Its attention must be flat, because HSA approximates softmax.
class TrainedHost : public Host {
 public:
  TrainedHost(const std::filesystem::path& path, int64_t length, bool check_digest)
      : loaded_(load_model(path, check_digest)) {
    if (card().config.attention != "flat")
      throw usage_error("{}: expected a model with flat attention to inject HSA into, got {} attention", path.string(),
                        card().config.attention);
    if (find_task(card().task).has_images)
      throw usage_error("{}: expected a model that reads texts, got one that reads images", path.string());
    loaded_.model->eval();
    if (!card().words.empty()) encode_ = text_encoder(card().words, card().pieces);
    longest_ = length > 0 ? std::min(length, card().shape.length) : card().shape.length;
  }

  int64_t layers() const override { return card().config.layers; }
  int64_t heads() const override { return card().config.heads; }
  int64_t key_heads() const override { return card().config.key_head_count(); }
  int64_t head_size() const override { return hidden() / heads(); }
  int64_t hidden() const override { return card().config.model_size; }
  bool is_causal() const override { return card().shape.next_token; }
  int64_t positions() const override { return card().shape.length; }
  const std::vector<std::string>& labels() const override { return card().labels; }
  bool has_features() const override { return false; }

  HostText read(const std::string& text) const override {
    HostText read{text, {}, {}, false};
    for (const Token token : encode_input(card().task, text, longest_, encode_)) read.encoding.ids.push_back(token);
    const auto whole = [&] { return static_cast<int64_t>(encode_ ? encode_(text).size() : text.size()); };
    read.cut = card().task != "listops" && read.tokens() == longest_ && whole() > longest_;
    return read;
  }

  std::vector<std::string> show(const HostText& text) const override {
    return show_tokens(card().task, tokens_of(text), card().words);
  }

  Tree natural_tree(const HostText& text, int64_t branching) const override {
    const std::string kind = card().task == "text" ? "text" : find_task(card().task).tree;
    return *TreeMaker(kind, branching, card().words).tree(tokens_of(text));
  }

  using Host::run;
  HostOutput run(const Tensor& ids, const Tensor& lengths, const AttentionFunction& attention) override {
    torch::NoGradGuard no_grad;
    for (int64_t layer = 0; layer < layers(); ++layer) {
      auto module = std::dynamic_pointer_cast<HktAttentionImpl>(loaded_.model->attention(layer));
      TORCH_CHECK(module != nullptr, "layer ", layer, " has no flat attention");
      module->in_place_of_softmax = [attention, lengths, layer](const Tensor& q, const Tensor& k, const Tensor& v) {
        return attention(layer, q, k, v, lengths);
      };
    }
    const Tensor logits = loaded_.model->forward({ids, lengths, {}});
    if (is_causal()) return {{}, {}, next_token_loss(logits, ids, lengths)};
    return {{}, logits, {}};
  }

 private:
  const ModelCard& card() const { return loaded_.card; }
  static std::vector<Token> tokens_of(const HostText& text) {
    return {text.encoding.ids.begin(), text.encoding.ids.end()};
  }

  LoadedModel loaded_;
  TextEncoder encode_;  // empty: texts are bytes
};

}  // namespace

std::unique_ptr<Host> Host::open(const std::filesystem::path& path, int64_t length, bool check_digest) {
  if (std::filesystem::exists(path / "config.json"))
    return std::make_unique<PretrainedHost>(path, length, check_digest);
  if (std::filesystem::exists(path / "run.json") || path.extension() == ".safetensors")
    return std::make_unique<TrainedHost>(path, length, check_digest);
  throw data_error(
      "{}: expected a Hugging Face folder (config.json, model.safetensors, a tokenizer) or the folder of a run "
      "(run.json)",
      path.string());
}

HostOutput Host::run(const std::vector<HostText>& texts, const AttentionFunction& attention) {
  std::vector<int64_t> lengths;
  for (const HostText& text : texts) lengths.push_back(text.tokens());
  const auto count = static_cast<int64_t>(texts.size());
  const Tensor ids = torch::zeros({count, *std::max_element(lengths.begin(), lengths.end())}, torch::kLong);
  auto to = ids.accessor<int64_t, 2>();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t t = 0; t < lengths[i]; ++t) to[i][t] = texts[i].encoding.ids[t];
  }
  return run(ids, torch::tensor(lengths), attention);
}

}  // namespace strata
