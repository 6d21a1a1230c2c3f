#include "generate/generator.h"

#include <torch/torch.h>

#include <chrono>
#include <filesystem>

#include "data/dataset.h"
#include "generate/text_out.h"
#include "hub/pretrained.h"
#include "inject/plan.h"
#include "model/hsa_attention.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"
#include "torch/hsa_op.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace strata {

using torch::Tensor;

// A language model that remembers what it has read.
class Generator::Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<int64_t> encode(const std::string& text) const = 0;  // never empty
  virtual std::string decode(int64_t token) const = 0;
  virtual int64_t end() const { return -1; }  // the token that ends a text
  virtual int64_t longest() const = 0;        // tokens that it can remember; 0: any number
  virtual int64_t bytes() const = 0;
  // Reads tokens behind those it has read, or from the beginning; the logits of what follows.
  virtual Tensor read(const std::vector<int64_t>& tokens) = 0;
  virtual void forget() = 0;
};

namespace {

class Gpt2 : public Generator::Model {
 public:
  Gpt2(const std::filesystem::path& folder, const GenerateOptions& options)
      : model_(Pretrained::load(folder)),
        tokenizer_(tokenizer_of(folder, model_.config())),
        branching_(options.branching) {
    const PretrainedConfig& config = model_.config();
    if (!config.is_causal())
      throw data_error("{}: expected a language model (GPT-2), and it is an encoder", folder.string());
    streaming_.assign(config.layers, false);
    for (const int64_t layer : parse_layers(options.layers, config.layers)) streaming_[layer] = true;
    end_ = tokenizer_.special_id("<|endoftext|>");
    model_.attention = [this](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) {
      return streaming_[layer] ? stream(layer, q, k, v) : attend(layer, q, k, v, lengths);
    };
    forget();
  }

  std::vector<int64_t> encode(const std::string& text) const override {
    const Encoding encoding = tokenizer_.encode(text, false);
    std::vector<int64_t> tokens(encoding.ids.begin(), encoding.ids.end());
    if (tokens.empty()) tokens.push_back(std::max<int64_t>(end_, 0));  // which texts begin behind, too
    return tokens;
  }
  std::string decode(int64_t token) const override { return tokenizer_.decode({static_cast<int32_t>(token)}); }
  int64_t end() const override { return end_; }
  int64_t longest() const override { return model_.config().longest(); }

  int64_t bytes() const override {
    int64_t sum = 0;
    for (size_t layer = 0; layer < streams_.size(); ++layer) {
      const HsaStreamState& s = streams_[layer];
      const std::vector<Tensor> kept = streaming_[layer] ? std::vector{s.keys, s.values, s.kappas, s.masses}
                                                         : std::vector{keys_[layer], values_[layer]};
      for (const Tensor& tensor : kept) sum += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
    }
    return sum;
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
  // Softmax over all keys so far. A prompt goes through the kernel; a token is one row.
  Tensor attend(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) {
    if (length_ == 0) {
      keys_[layer] = k.contiguous();
      values_[layer] = v.contiguous();
      return softmax_attention(true)(layer, q, k, v, lengths);
    }
    keys_[layer] = torch::cat({keys_[layer], k}, 2);
    values_[layer] = torch::cat({values_[layer], v}, 2);
    const Tensor scores = torch::matmul(q, keys_[layer].transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(3)));
    return torch::matmul(torch::softmax(scores, -1), values_[layer]);
  }

  Tensor stream(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    HsaStreamState& state = streams_[layer];
    HsaStreamOptions options;
    options.branching = branching_;
    if (!state.keys.defined()) {
      const int64_t H = q.size(1), d = q.size(3);
      int64_t heights = 1;  // with room for all tokens that the model has positions for
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
  int64_t branching_, end_ = -1, length_ = 0;
  std::vector<Tensor> keys_, values_;  // (1, heads, tokens, channels), of each layer with softmax
  std::vector<HsaStreamState> streams_;
};

// A byte model of ours, whatever its attention.
class Trained : public Generator::Model {
 public:
  Trained(const std::filesystem::path& path, const GenerateOptions& options) : loaded_(load_model(path)) {
    if (!loaded_.card.shape.next_token)
      throw data_error("{}: expected a language model (strata train --task text), and it is a classifier of {}",
                       path.string(), loaded_.card.task);
    if (options.layers != "none")
      throw usage_error("--layers: only GPT-2 folders take HSA in; train with --attention hsa to generate by it");
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

std::vector<double> to_vector(const Tensor& logits) {
  const Tensor numbers = logits.to(torch::kDouble).contiguous();
  return {numbers.data_ptr<double>(), numbers.data_ptr<double>() + numbers.numel()};
}

}  // namespace

Generator::Generator(const std::string& model, const GenerateOptions& options) : options_(options) {
  if (std::filesystem::exists(std::filesystem::path(model) / "config.json")) {
    model_ = std::make_unique<Gpt2>(model, options);
  } else {
    model_ = std::make_unique<Trained>(model, options);
  }
}
Generator::~Generator() = default;

Generated Generator::operator()(const std::string& prompt, const std::function<void(std::string_view)>& write) {
  using Seconds = std::chrono::duration<double>;
  auto start = std::chrono::steady_clock::now();
  std::vector<int64_t> context = model_->encode(prompt);
  Generated result{"", static_cast<int64_t>(context.size()), 0, "tokens", 0, 0, 0};
  // What does not fit is forgotten from the front, half of the room at a time, and the rest is read again.
  const int64_t longest = model_->longest();
  auto read_again = [&] {
    if (static_cast<int64_t>(context.size()) > longest / 2 && longest > 0)
      context.erase(context.begin(), context.end() - std::max<int64_t>(1, longest / 2));
    model_->forget();
    return model_->read(context);
  };
  const bool fits = longest == 0 || static_cast<int64_t>(context.size()) <= longest;
  model_->forget();
  Tensor logits = fits ? model_->read(context) : read_again();
  result.prompt_seconds = Seconds(std::chrono::steady_clock::now() - start).count();
  start = std::chrono::steady_clock::now();
  TextOut out(options_.stops, write);
  Random random(options_.seed);
  for (; result.tokens < options_.tokens; ++result.tokens) {
    if (interrupted()) {
      result.ended = "interrupt";
      break;
    }
    if (result.tokens > 0) {
      const bool room = longest == 0 || static_cast<int64_t>(context.size()) <= longest;
      logits = room ? model_->read({context.back()}) : read_again();
    }
    const int64_t token = sample_token(to_vector(logits), options_.sample, random);
    if (token < 0) throw data_error("the model's outputs are no numbers; its weights may be damaged");
    if (token == model_->end()) {
      result.ended = "end of text";
      break;
    }
    context.push_back(token);
    if (!out.add(model_->decode(token))) {
      result.ended = "stop";
      break;
    }
  }
  out.finish();
  result.text = out.text();
  result.seconds = Seconds(std::chrono::steady_clock::now() - start).count();
  result.cache_bytes = model_->bytes();
  return result;
}

}  // namespace strata
