#include <algorithm>

#include "generate/language_model.h"
#include "hub/pretrained.h"
#include "inject/selection.h"
#include "model/hsa_attention.h"
#include "tokenizer/tokenizer.h"
#include "torch/hsa_op.h"
#include "util/error.h"

namespace strata {
namespace {

using torch::Tensor;

class HubModel : public LanguageModel {
 public:
  HubModel(const std::filesystem::path& folder, const GenerateOptions& options)
      : model_(Pretrained::load(folder, options.check_digest)),
        tokenizer_(tokenizer_of(folder, model_.config())),
        branching_(options.branching) {
    const PretrainedConfig& config = model_.config();
    if (!config.is_causal())
      throw data_error("{}: expected a language model (GPT-2, Llama, Qwen2), got an encoder", folder.string());
    streaming_.assign(config.layers, false);
    for (const int64_t layer : parse_layers(options.layers, config.layers)) streaming_[layer] = true;
    ends_ = config.ends;
    const int64_t end = tokenizer_.special_id("<|endoftext|>");
    if (end >= 0 && !config.is_modern()) ends_.push_back(end);
    begin_ = config.begin >= 0 && config.begin < config.vocabulary ? config.begin : std::max<int64_t>(end, 0);
    model_.attention = [this](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) {
      return streaming_[layer] ? stream(layer, q, k, v) : attend(layer, q, k, v, lengths);
    };
    forget();
  }

  std::vector<int64_t> encode(const std::string& text) const override {
    const Encoding encoding = tokenizer_.encode(text);
    std::vector<int64_t> tokens(encoding.ids.begin(), encoding.ids.end());
    if (tokens.empty()) tokens.push_back(begin_);  // texts begin after it
    return tokens;
  }
  std::string decode(int64_t token) const override { return tokenizer_.decode({static_cast<int32_t>(token)}); }
  bool is_end(int64_t token) const override { return std::count(ends_.begin(), ends_.end(), token) > 0; }
  int64_t longest() const override { return model_.config().longest(); }

  CacheSize cache() const override {
    int64_t sum = 0;
    for (size_t layer = 0; layer < streams_.size(); ++layer) {
      const HsaStreamState& s = streams_[layer];
      const std::vector<Tensor> kept = streaming_[layer] ? std::vector{s.keys, s.values, s.kappas, s.masses}
                                                         : std::vector{keys_[layer], values_[layer]};
      for (const Tensor& tensor : kept) sum += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
    }
    return {sum};
  }

  Tensor read(const std::vector<int64_t>& tokens) override {
    torch::NoGradGuard no_grad;
    const auto count = static_cast<int64_t>(tokens.size());
    const Tensor last =
        model_.hidden_states(torch::tensor(tokens).unsqueeze(0), torch::tensor({count}), length_).back();
    length_ += count;
    return model_.next_token_logits(last.narrow(1, count - 1, 1))[0][0];
  }

  void forget() override {
    length_ = 0;
    keys_.assign(streaming_.size(), {});
    values_.assign(streaming_.size(), {});
    streams_.assign(streaming_.size(), {});
  }

 private:
  // Softmax over all keys so far. The kernel reads a prompt; a single token is one row of scores in each head.
  Tensor attend(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) {
    if (length_ == 0) {
      keys_[layer] = k.contiguous();
      values_[layer] = v.contiguous();
      return softmax_attention(true)(layer, q, k, v, lengths);
    }
    keys_[layer] = torch::cat({keys_[layer], k}, 2);
    values_[layer] = torch::cat({values_[layer], v}, 2);
    const Tensor rows = q.reshape({1, k.size(1), -1, q.size(3)});  // the query heads of a key head
    const Tensor scores =
        torch::matmul(rows, keys_[layer].transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(3)));
    return torch::matmul(torch::softmax(scores, -1), values_[layer]).view(q.sizes());
  }

  Tensor stream(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    HsaStreamState& state = streams_[layer];
    HsaStreamOptions options;
    options.branching = branching_;
    if (!state.keys.defined()) {
      const int64_t H = k.size(1), d = q.size(3);
      int64_t heights = 1;  // enough for every position of the model
      for (int64_t room = branching_; room < longest(); room *= branching_) ++heights;
      state = {torch::zeros({1, H, heights, branching_, d}), torch::zeros({1, H, heights, branching_, d}),
               torch::zeros({1, H, heights, branching_}), torch::zeros({1, heights, branching_}),
               torch::zeros({1}, torch::kLong)};
    }
    std::vector<Tensor> rows;
    for (int64_t t = 0; t < q.size(2); ++t) {
      rows.push_back(hsa_stream_step(q.select(2, t).contiguous(), k.select(2, t).contiguous(),
                                     v.select(2, t).contiguous(), state, options));
    }
    return torch::stack(rows, 2);
  }

  Pretrained model_;
  Tokenizer tokenizer_;
  std::vector<bool> streaming_;
  std::vector<int64_t> ends_;
  int64_t branching_, begin_ = 0, length_ = 0;
  std::vector<Tensor> keys_, values_;  // (1, key heads, tokens, channels), of each layer with softmax
  std::vector<HsaStreamState> streams_;
};

}  // namespace

std::unique_ptr<LanguageModel> open_hub(const std::filesystem::path& folder, const GenerateOptions& options) {
  return std::make_unique<HubModel>(folder, options);
}

}  // namespace strata
