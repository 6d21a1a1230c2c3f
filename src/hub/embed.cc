#include "hub/embed.h"

#include <algorithm>
#include <cstring>

#include "hub/inject.h"
#include "torch/hsa_op.h"
#include "util/error.h"

namespace strata {

using torch::Tensor;

struct Embedder::State {
  Pretrained model;
  Tokenizer tokenizer;
  EmbedOptions options;
  std::vector<int64_t> layers;
  int64_t longest = 0;

  Tree tree_of(const std::string& text, const Encoding& encoding) const {
    if (options.tree == "sentences") return sentence_tree(text, encoding, options.branching);
    Tree tree;
    const Status status =
        balanced_tree(static_cast<int64_t>(encoding.ids.size()), options.branching, Domain::kSequence, &tree);
    if (!status.ok()) throw data_error("tree: {}", status.message());
    return tree;
  }
};

std::vector<int64_t> parse_layers(const std::string& text, int64_t layers) {
  std::vector<int64_t> chosen;
  if (text == "none") return chosen;
  if (text == "late") {
    for (int64_t layer = layers - 1; layer >= layers / 2; layer -= 2) chosen.push_back(layer);
    std::reverse(chosen.begin(), chosen.end());
    return chosen;
  }
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    const bool digits = !word.empty() && word.size() < 6 && word.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoll(word) >= layers)
      throw usage_error("--layers: expected none, late, or numbers from 0 to {} apart by commas, got \"{}\"",
                        layers - 1, text);
    chosen.push_back(std::stoll(word));
    at = end + 1;
  }
  return chosen;
}

Embedder::Embedder(const std::filesystem::path& folder, const EmbedOptions& options)
    : state_(new State{Pretrained::load(folder), Tokenizer::load(folder), options, {}, 0}) {
  const PretrainedConfig& config = state_->model.config();
  if (config.is_causal())
    throw data_error("{}: expected an encoder (BERT, RoBERTa), and it is a GPT-2 model", folder.string());
  if (state_->tokenizer.size() > config.vocabulary)
    throw data_error("{}: the tokenizer has {} tokens and the model {}; they do not belong together", folder.string(),
                     state_->tokenizer.size(), config.vocabulary);
  state_->layers = parse_layers(options.layers, config.layers);
  state_->longest = options.length > 0 ? std::min(options.length, config.longest()) : config.longest();
}
Embedder::~Embedder() = default;

int64_t Embedder::size() const { return state_->model.config().hidden; }
int64_t Embedder::longest() const { return state_->longest; }

std::vector<Embedding> Embedder::operator()(const std::vector<std::string>& texts) const {
  if (texts.empty()) return {};
  std::vector<Encoding> encodings;
  std::vector<Embedding> rows(texts.size());
  std::vector<int64_t> lengths;
  Injection injection;
  injection.layers = state_->layers;
  int64_t width = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    Encoding encoding = state_->tokenizer.encode(texts[i]);
    const auto whole = static_cast<int64_t>(encoding.ids.size());
    rows[i].cut = whole > state_->longest;
    if (rows[i].cut) encoding = state_->tokenizer.encode(texts[i], true, state_->longest);
    rows[i].tokens = static_cast<int64_t>(encoding.ids.size());
    if (rows[i].tokens == 0) throw data_error("input {}: has no tokens, and the model no special ones", i + 1);
    lengths.push_back(rows[i].tokens);
    width = std::max(width, rows[i].tokens);
    if (!injection.layers.empty()) {
      injection.trees.push_back(encode_tree(state_->tree_of(texts[i], encoding)));
      injection.exact.emplace_back();
      for (int64_t t = 0; t < rows[i].tokens && state_->options.exact_special; ++t) {
        if (state_->tokenizer.is_special(encoding.ids[t])) injection.exact.back().push_back(t);
      }
    }
    encodings.push_back(std::move(encoding));
  }
  const auto count = static_cast<int64_t>(texts.size());
  const Tensor ids = torch::zeros({count, width}, torch::kLong), real = torch::tensor(lengths);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t t = 0; t < lengths[i]; ++t) ids[i][t] = encodings[i].ids[t];
  }
  Pretrained& model = state_->model;
  if (!injection.layers.empty()) model.attention = inject_hsa(softmax_attention(false), std::move(injection), false);
  Tensor pooled = model.mean_pooled(model.hidden_states(ids, real).back(), real);
  if (state_->options.normalize) pooled = torch::nn::functional::normalize(pooled);
  pooled = pooled.contiguous();
  for (int64_t i = 0; i < count; ++i) {
    const auto* from = pooled[i].data_ptr<float>();
    rows[i].values.assign(from, from + size());
  }
  return rows;
}

std::string to_npy(const std::vector<Embedding>& rows, int64_t size) {
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows.size(), size);
  constexpr size_t kPrefix = 10, kBlock = 64;  // what stands before the header; data starts on a multiple of 64
  header.resize((kPrefix + header.size() + 1 + kBlock - 1) / kBlock * kBlock - kPrefix - 1, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  for (const Embedding& row : rows)
    bytes.append(reinterpret_cast<const char*>(row.values.data()), row.values.size() * sizeof(float));
  return bytes;
}

}  // namespace strata
