#include "data/dataset.h"
#include "generate/language_model.h"
#include "model/model_file.h"
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
          "--layers: HSA can be injected only into GPT-2 folders; train a model with --attention hsa instead");
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
  int64_t longest() const override { return loaded_.card.config.positions == "none" ? 0 : loaded_.card.shape.length; }
  int64_t bytes() const override { return stream_.bytes(); }
  Tensor read(const std::vector<int64_t>& tokens) override {
    Tensor logits;
    for (const int64_t token : tokens) logits = loaded_.model->step(token, stream_);
    return logits;
  }
  void forget() override { stream_ = loaded_.model->start_stream(); }

 private:
  LoadedModel loaded_;
  SequenceModelImpl::Stream stream_;
};

}  // namespace

std::unique_ptr<LanguageModel> open_trained(const std::filesystem::path& path, const GenerateOptions& options) {
  return std::make_unique<Trained>(path, options);
}

}  // namespace strata
