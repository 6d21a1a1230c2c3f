#include "inject/embed.h"

#include <cstring>

#include "inject/selection.h"
#include "util/error.h"

namespace strata {

using torch::Tensor;

struct Embedder::State {
  std::unique_ptr<Host> host;
  InjectionSelection selection;
  bool normalize = false;
};

Embedder::Embedder(const std::filesystem::path& folder, const EmbedOptions& options)
    : state_(new State{Host::open(folder, options.length, options.check_digest),
                       {{}, !options.approximate_special},
                       options.normalize}) {
  if (state_->host->is_causal() || !std::filesystem::exists(folder / "config.json"))
    throw data_error("{}: expected the Hugging Face folder of an encoder (BERT, RoBERTa, MiniLM)", folder.string());
  for (const int64_t layer : parse_layers(options.layers, state_->host->layers()))
    state_->selection.layers.push_back({layer, {{options.tree, options.branching}}});
}
Embedder::~Embedder() = default;

int64_t Embedder::size() const { return state_->host->hidden(); }
int64_t Embedder::longest() const { return state_->host->longest(); }

std::vector<Embedding> Embedder::operator()(const std::vector<std::string>& texts) const {
  if (texts.empty()) return {};
  std::vector<HostText> read;
  std::vector<Embedding> rows(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    read.push_back(state_->host->read(texts[i]));
    rows[i].tokens = read[i].tokens();
    rows[i].cut = read[i].cut;
    if (rows[i].tokens == 0) throw data_error("input {}: expected a text with tokens, got none", i + 1);
  }
  Tensor pooled = state_->host->run(read, state_->selection.attention(*state_->host, read)).features;
  if (state_->normalize) pooled = torch::nn::functional::normalize(pooled);
  pooled = pooled.contiguous();
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto* from = pooled[static_cast<int64_t>(i)].data_ptr<float>();
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
