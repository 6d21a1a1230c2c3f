#include <algorithm>
#include <limits>

#include "generate/language_model.h"
#include "hub/pretrained.h"
#include "inject/selection.h"
#include "model/hsa_attention.h"
#include "strata/hsa_stream.h"
#include "tokenizer/tokenizer.h"
#include "torch/hkt_op.h"
#include "torch/hsa_op.h"
#include "train/setup.h"
#include "util/error.h"

namespace strata {
namespace {

using torch::Tensor;

constexpr int64_t kRoom = 64;  // tokens that a cache has memory for at first

class HubModel : public LanguageModel {
 public:
  HubModel(const std::filesystem::path& folder, const GenerateOptions& options)
      : model_(Pretrained::load(folder, options.check_digest)),
        tokenizer_(tokenizer_of(folder, model_.config())),
        device_(device_of(options.device)),
        branching_(options.branching) {
    model_.to(device_);
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
      const HsaStreamCache& s = streams_[layer];
      const std::vector<Tensor> kept = streaming_[layer] ? std::vector{s.keys, s.values, s.kappas, s.masses}
                                                         : std::vector{keys_[layer], values_[layer]};
      for (const Tensor& tensor : kept) sum += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
    }
    return {sum};
  }

  Tensor read(const std::vector<int64_t>& tokens) override {
    torch::NoGradGuard no_grad;
    const auto count = static_cast<int64_t>(tokens.size());
    const Tensor ids = torch::tensor(tokens).to(device_).unsqueeze(0);
    const Tensor lengths = torch::full({1}, length_ + count, ids.options());  // made there: the host waits for nothing
    const Tensor last = model_.hidden_states(ids, lengths, length_).back();
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
  // Softmax over all keys so far. One kernel reads a prompt, another one new token; other rows are scored against the
  // cached keys. Memory is doubled when it is full.
  Tensor attend(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) {
    const int64_t rows = k.size(2), total = length_ + rows;
    auto append = [&](Tensor& cached, const Tensor& added) {
      const int64_t held = cached.defined() ? cached.size(2) : 0;
      if (held < total) {
        const int64_t capacity = std::min(std::max({total, 2 * held, kRoom}), std::max(total, longest()));
        const Tensor larger = torch::zeros({added.size(0), added.size(1), capacity, added.size(3)}, added.options());
        if (length_ > 0) larger.narrow(2, 0, length_).copy_(cached.narrow(2, 0, length_));
        cached = larger;
      }
      cached.narrow(2, length_, rows).copy_(added);
      return cached.narrow(2, 0, total);
    };
    const Tensor keys = append(keys_[layer], k), values = append(values_[layer], v);
    if (length_ == 0) return softmax_attention(true)(layer, q, k, v, lengths);
    if (rows == 1) {
      const Tensor one_level = torch::ones({q.size(1), 1}, q.options());
      return hkt_decode({q}, {keys_[layer]}, values_[layer], one_level, lengths);
    }
    const int64_t group = q.size(1) / k.size(1);
    const Tensor grouped = q.reshape({1, k.size(1), group * rows, q.size(3)});  // the query heads of a key head
    Tensor scores = torch::matmul(grouped, keys.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(3)));
    const Tensor later = torch::ones({rows, total}, q.options().dtype(torch::kBool)).triu(length_ + 1);
    scores = scores.masked_fill(later.repeat({group, 1}), -std::numeric_limits<double>::infinity());
    return torch::matmul(torch::softmax(scores, -1), values).view(q.sizes());
  }

  // The parallel form reads a prompt and fills the cache; rows behind it are steps.
  Tensor stream(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    HsaStreamCache& cache = streams_[layer];
    HsaStreamOptions options;
    options.branching = branching_;
    if (length_ == 0) {
      const int64_t H = k.size(1), d = q.size(3);
      const int64_t heights = hsa_stream_heights(longest(), static_cast<int>(branching_));
      cache = HsaStreamCache::empty({1, H, branching_, /*near=*/1, d, d}, heights, /*history=*/0, k.options());
      cache.fill(k, v, {}, {k.size(2)});
      return std::get<0>(hsa_stream_attention(q, k, v, options));
    }
    std::vector<Tensor> rows;
    for (int64_t t = 0; t < q.size(2); ++t) {
      cache.before_step();
      HsaStreamState state{cache.keys, cache.values, cache.kappas, cache.masses, cache.lengths};
      rows.push_back(hsa_stream_step(q.select(2, t).contiguous(), k.select(2, t).contiguous(),
                                     v.select(2, t).contiguous(), state, options));
      cache.count_one();
    }
    return torch::stack(rows, 2);
  }

  Pretrained model_;
  Tokenizer tokenizer_;
  torch::Device device_;
  std::vector<bool> streaming_;
  std::vector<int64_t> ends_;
  int64_t branching_, begin_ = 0, length_ = 0;
  std::vector<Tensor> keys_, values_;  // (1, key heads, capacity, channels), of each layer with softmax
  std::vector<HsaStreamCache> streams_;
};

}  // namespace

std::unique_ptr<LanguageModel> open_hub(const std::filesystem::path& folder, const GenerateOptions& options) {
  return std::make_unique<HubModel>(folder, options);
}

}  // namespace strata
