#include "data/dataset.h"
#include "generate/language_model.h"
#include "model/model_file.h"
#include "strata/hsa_stream.h"
#include "train/setup.h"
#include "util/error.h"

namespace strata {
namespace {

using torch::Tensor;

class Trained : public LanguageModel {
 public:
  Trained(const std::filesystem::path& path, const GenerateOptions& options)
      : loaded_(load_model(path, options.check_digest)) {
    if (!loaded_.card.shape.next_token)
      throw data_error("{}: expected a language model (strata train --task text), got a classifier of {}",
                       path.string(), loaded_.card.task);
    if (options.layers != "none")
      throw usage_error(
          "--layers: HSA can be injected only into Hugging Face folders; train a model with --attention hsa instead");
    loaded_.model->to(device_of(options.device));
    loaded_.model->eval();
    forget();
  }

  std::vector<int64_t> encode(const std::string& text) const override {
    std::vector<int64_t> tokens;
    for (const char byte : text.empty() ? "\n" : text) tokens.push_back(1 + static_cast<unsigned char>(byte));
    return tokens;
  }
  std::string decode(int64_t token) const override {
    return token == kPad ? "" : std::string(1, static_cast<char>(token - 1));
  }
  int64_t longest() const override { return loaded_.card.longest(); }
  CacheSize cache() const override {
    const ModelConfig& c = loaded_.card.config;
    CacheSize size{stream_.bytes()};
    if (c.attention != "hsa" && c.attention != "strata") return size;
    const bool levels = c.attention == "strata";
    size.nodes = hsa_stream_slots(read_, static_cast<int>(c.branching), levels ? static_cast<int>(c.near) : 1);
    // A node has the keys of every level, values and, per key head, a bias; its mass is that of all heads.
    const int64_t key_size = c.model_size / c.heads * c.key_head_count();
    const int64_t numbers = key_size * ((levels ? c.levels : 1) + 1) + c.key_head_count() + 1;
    size.node_bytes = c.layers * size.nodes * numbers * static_cast<int64_t>(sizeof(float));
    size.every_token_bytes = c.layers * read_ * 2 * key_size * static_cast<int64_t>(sizeof(float));
    return size;
  }
  Tensor read(const std::vector<int64_t>& tokens) override {
    const Tensor logits = loaded_.model->read(tokens, stream_);
    read_ += static_cast<int64_t>(tokens.size());
    return logits;
  }
  void forget() override {
    stream_ = loaded_.model->start_stream();
    read_ = 0;
  }

 private:
  LoadedModel loaded_;
  SequenceModelImpl::Stream stream_;
  int64_t read_ = 0;  // tokens in the caches
};

}  // namespace

std::unique_ptr<LanguageModel> open_trained(const std::filesystem::path& path, const GenerateOptions& options) {
  return std::make_unique<Trained>(path, options);
}

}  // namespace strata
