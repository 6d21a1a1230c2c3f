#include "model/sequence_model.h"

#include <cmath>

#include "model/embedding.h"
#include "model/modern.h"
#include "model/row_dropout.h"
#include "torch/layer_norm.h"

namespace strata {

using torch::Tensor;

Tensor sinusoidal_embedding(int64_t length, int64_t size) {
  const Tensor place = torch::arange(length, torch::kFloat).unsqueeze(1);
  const Tensor wave =
      torch::exp(torch::arange((size + 1) / 2, torch::kFloat) * (-2.0 * std::log(10000.0) / static_cast<double>(size)));
  return torch::stack({torch::sin(place * wave), torch::cos(place * wave)}, -1)
      .flatten(1)
      .narrow(1, 0, size)
      .contiguous();
}

SequenceModelImpl::SequenceModelImpl(const ModelConfig& config_, const ModelShape& shape_,
                                     const AttentionMaker& attention)
    : config(resolved(config_)), shape(shape_) {
  constexpr double kPositionNoise = 0.02;
  const int64_t size = config.model_size;
  if (shape.frozen > 0) {
    frozen_ = register_buffer("frozen_embedding", torch::zeros({shape.vocabulary, shape.frozen}));
    map_ = register_module("embedding_map", torch::nn::Linear(shape.frozen, size));
  } else {
    embedding_ = register_module("embedding", torch::nn::Embedding(shape.vocabulary, size));
  }
  if (config.positions == "learned") {
    positions_ = register_parameter("positions", kPositionNoise * torch::randn({shape.length, size}));
  } else if (config.positions == "sinusoidal") {
    positions_ = sinusoidal_embedding(shape.length, size);
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = "layer_" + std::to_string(layer) + "_";
    Block block;
    block.attention_norm = make_norm(prefix + "attention_norm");
    block.attention = attention(config, shape);
    register_module(prefix + "attention", block.attention.module);
    block.ffn = make_ffn(prefix);
    blocks_.push_back(std::move(block));
  }
  norm_ = make_norm("norm");
  head_ = register_module("head",
                          torch::nn::Linear(torch::nn::LinearOptions(size, shape.outputs).bias(!config.is_modern())));
}

SequenceModelImpl::Part SequenceModelImpl::make_norm(const std::string& name) {
  if (config.is_modern())
    return [norm = register_module(name, RmsNorm(config.model_size))](const Tensor& x) { return norm->forward(x); };
  auto norm = register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.model_size})));
  return [norm](const Tensor& x) { return layer_norm(x, norm->weight, norm->bias, norm->options.eps()); };
}

SequenceModelImpl::Part SequenceModelImpl::make_ffn(const std::string& prefix) {
  const int64_t size = config.model_size, width = config.ffn_width();
  const Part norm = make_norm(prefix + "ffn_norm");
  if (config.is_modern())
    return [norm, ffn = register_module(prefix + "ffn", SwiGlu(size, width))](const Tensor& x) {
      return ffn->forward(norm(x));
    };
  auto widen = register_module(prefix + "widen", torch::nn::Linear(size, width));
  auto narrow = register_module(prefix + "narrow", torch::nn::Linear(width, size));
  return [norm, widen, narrow](const Tensor& x) { return narrow->forward(torch::gelu(widen->forward(norm(x)))); };
}

void SequenceModelImpl::freeze_embeddings(const Tensor& words) {
  torch::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(
      frozen_.defined() && words.dim() == 2 && words.size(0) < frozen_.size(0) && words.size(1) == frozen_.size(1),
      "embeddings: expected those of this model's words, got ", words.sizes());
  frozen_.slice(0, frozen_.size(0) - words.size(0)).copy_(words);
  // torch starts a map of n channels with entries of variance 1 / (3 n).
  map_->weight.mul_(std::sqrt(3.0) / words.square().mean().sqrt().clamp_min(1e-6));
}

Tensor SequenceModelImpl::embed_each(const Tensor& tokens) const {
  if (!frozen_.defined()) return embed_tokens(embedding_->weight, tokens);
  return torch::linear(torch::embedding(frozen_, tokens), map_->weight, map_->bias).to(frozen_.scalar_type());
}

int64_t SequenceModelImpl::parameter_count() const {
  int64_t count = 0;
  for (const Tensor& parameter : parameters()) count += parameter.requires_grad() ? parameter.numel() : 0;
  return count;
}

Tensor SequenceModelImpl::drop(const Tensor& x, const ModelInput& input, int64_t place) const {
  if (!input.dropout_keys.defined() || !is_training() || config.dropout == 0)
    return torch::dropout(x, config.dropout, is_training());
  return row_dropout(x, config.dropout, input.dropout_keys, place);
}

Tensor SequenceModelImpl::embed(const ModelInput& input) {
  const int64_t tokens = input.tokens.size(1);
  TORCH_CHECK_VALUE(!positions_.defined() || tokens <= shape.length, "tokens: expected at most ", shape.length,
                    ", got ", tokens);
  Tensor x = embed_each(input.tokens);
  if (positions_.defined()) {
    if (positions_.device() != x.device()) positions_ = positions_.to(x.device());  // sinusoidal ones, once
    x = x + positions_.narrow(0, 0, tokens);
  }
  return drop(x, input, 0);
}

Tensor SequenceModelImpl::pool(const Tensor& x, const ModelInput& input) const {
  if (config.pooling == "first") return x.select(1, 0);
  const Tensor place = torch::arange(x.size(1), input.lengths.options());
  const Tensor real = (place.unsqueeze(0) < input.lengths.unsqueeze(1)).to(x.scalar_type()).unsqueeze(-1);
  return (x * real).sum(1) / input.lengths.clamp_min(1).to(x.scalar_type()).unsqueeze(-1);
}

Tensor SequenceModelImpl::run(const ModelInput& input, std::vector<Tensor>* read) {
  Tensor x = embed(input);
  int64_t place = 0;
  for (Block& block : blocks_) {
    const Tensor normed = block.attention_norm(x);
    if (read != nullptr) read->push_back(normed);
    x = x + drop(block.attention.forward(normed, input), input, ++place);
    x = x + drop(block.ffn(x), input, ++place);
  }
  return norm_(x);
}

int64_t SequenceModelImpl::Stream::bytes() const {
  int64_t sum = 0;
  for (const auto& layer : layers) sum += layer->bytes();
  return sum;
}

SequenceModelImpl::Stream SequenceModelImpl::start_stream() const {
  TORCH_CHECK_VALUE(shape.next_token, "start_stream: expected a language model, got a classifier");
  torch::NoGradGuard no_grad;
  Stream stream;
  for (const Block& block : blocks_) stream.layers.push_back(block.attention.stream());
  return stream;
}

Tensor SequenceModelImpl::read(const std::vector<int64_t>& tokens, Stream& stream) {
  const auto count = static_cast<int64_t>(tokens.size());
  TORCH_CHECK_VALUE(count > 0, "tokens: expected at least one, got none");
  TORCH_CHECK_VALUE(!positions_.defined() || stream.length + count <= shape.length, "tokens: expected at most ",
                    shape.length, ", and this stream has ", stream.length, " already, got ", count, " more");
  torch::NoGradGuard no_grad;
  if (stream.length > 0 && count > 1) {
    Tensor logits;
    for (const int64_t token : tokens) logits = step(token, stream);
    return logits;
  }
  Tensor x = embed_each(torch::tensor(tokens).to(head_->weight.device())).unsqueeze(0);  // (1, T, model)
  if (positions_.defined()) x = x + positions_.narrow(0, stream.length, count).to(x.device());
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    Block& block = blocks_[layer];
    const Tensor normed = block.attention_norm(x);
    AttentionStream& attention = *stream.layers[layer];
    x = x + (stream.length == 0 ? attention.prefill(normed) : attention.step(normed.select(1, 0)).unsqueeze(1));
    x = x + block.ffn(x);
  }
  stream.length += count;
  return head_(norm_(x.select(1, count - 1)))[0];
}

Tensor SequenceModelImpl::step(int64_t token, Stream& stream) { return read({token}, stream); }

Tensor SequenceModelImpl::forward(const ModelInput& input) {
  const Tensor x = run(input, nullptr);
  return head_(shape.next_token ? x : pool(x, input));
}

}  // namespace strata
