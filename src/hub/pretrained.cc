#include "hub/pretrained.h"

#include "model/modern.h"
#include "model/rotary.h"
#include "torch/hkt_op.h"

namespace strata {

using torch::Tensor;

AttentionFunction softmax_attention(bool causal) {
  return [causal](int64_t, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) {
    HktOptions options;
    options.causal = causal;
    options.lengths = lengths;
    const auto compute = q.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    const Tensor one_level = torch::ones({q.size(1), 1}, q.options().dtype(compute));
    return std::get<0>(hkt_attention({q}, {k}, v, one_level, options));
  };
}

Tensor Pretrained::Linear::operator()(const Tensor& x) const { return torch::linear(x, weight, bias); }

Tensor Pretrained::norm(const Norm& norm, const Tensor& x) const {
  if (config_.is_modern()) return rms_norm(x, norm.weight, config_.norm_epsilon);
  return torch::layer_norm(x, {config_.hidden}, norm.weight, norm.bias, config_.norm_epsilon);
}

Tensor Pretrained::activate(const Tensor& x) const {
  if (config_.activation == "relu") return torch::relu(x);
  if (config_.activation == "gelu") return torch::gelu(x);
  return torch::gelu(x, "tanh");
}

Tensor Pretrained::attend(int64_t index, const Layer& layer, const Tensor& x, const Tensor& lengths,
                          int64_t first) const {
  const int64_t B = x.size(0), T = x.size(1);
  auto heads = [&](const Tensor& t, int64_t count) { return t.view({B, T, count, config_.head_size}).transpose(1, 2); };
  Tensor q = heads(layer.query(x), config_.heads), k = heads(layer.key(x), config_.key_heads);
  if (frequencies_.defined()) {
    const Tensor places = torch::arange(first, first + T, x.options().dtype(torch::kLong));
    auto turned = [&](const Tensor& rows) {
      const Tensor rotated = rotate(rows, places, frequencies_);
      return config_.rotary.attention == 1 ? rotated : rotated * config_.rotary.attention;
    };
    q = turned(q);
    k = turned(k);
  }
  const Tensor mixed = attention(index, q, k, heads(layer.value(x), config_.key_heads), lengths);
  return layer.out(mixed.transpose(1, 2).reshape({B, T, config_.heads * config_.head_size}));
}

Tensor Pretrained::feed(const Layer& layer, const Tensor& x) const {
  if (config_.is_modern()) return layer.narrow(torch::silu(layer.gate(x)) * layer.widen(x));
  return layer.narrow(activate(layer.widen(x)));
}

std::vector<Tensor> Pretrained::hidden_states(const Tensor& ids, const Tensor& lengths, int64_t first) const {
  torch::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(ids.dim() == 2 && first >= 0 && first + ids.size(1) <= config_.longest(),
                    "ids: expected (batch, tokens) with at most ", config_.longest(), " tokens, got ", ids.sizes(),
                    " at position ", first);
  const int64_t T = ids.size(1);
  Tensor x = torch::embedding(words_, ids.clamp(0, config_.vocabulary - 1));
  if (positions_.defined()) x = x + positions_.narrow(0, config_.first_position + first, T);
  if (types_.defined()) x = x + types_[0];
  const bool after = !config_.is_causal();  // BERT normalises after its layers, language models before
  if (after) x = norm(embedding_norm_, x);
  std::vector<Tensor> states = {x};
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    const auto index = static_cast<int64_t>(l);
    if (after) {
      x = norm(layer.attention_norm, x + attend(index, layer, x, lengths, first));
      x = norm(layer.ffn_norm, x + feed(layer, x));
    } else {
      x = x + attend(index, layer, norm(layer.attention_norm, x), lengths, first);
      x = x + feed(layer, norm(layer.ffn_norm, x));
    }
    states.push_back(x);
  }
  if (!after) states.back() = norm(embedding_norm_, states.back());
  return states;
}

void Pretrained::to(const torch::Device& device) {
  move_all([&](const Tensor& x) { return x.to(device); });
}

// The angles of rotary positions stay in float64.
void Pretrained::to(torch::ScalarType type) {
  move_all([&](const Tensor& x) { return x.scalar_type() == torch::kDouble ? x : x.to(type); });
}

void Pretrained::move_all(const std::function<Tensor(const Tensor&)>& changed) {
  auto move = [&](auto&... tensors) { (..., (tensors = tensors.defined() ? changed(tensors) : tensors)); };
  auto move_linear = [&](auto&... linears) { (..., move(linears.weight, linears.bias)); };
  move(words_, positions_, types_, head_, frequencies_, embedding_norm_.weight, embedding_norm_.bias);
  move_linear(pooler_, dense_, classes_);
  for (Layer& l : layers_) {
    move_linear(l.query, l.key, l.value, l.out, l.gate, l.widen, l.narrow);
    move_linear(l.attention_norm, l.ffn_norm);
  }
}

Tensor Pretrained::mean_pooled(const Tensor& hidden, const Tensor& lengths) const {
  const Tensor real = (torch::arange(hidden.size(1)).unsqueeze(0) < lengths.unsqueeze(1)).to(hidden.scalar_type());
  return (hidden * real.unsqueeze(-1)).sum(1) / lengths.clamp_min(1).to(hidden.scalar_type()).unsqueeze(-1);
}

Tensor Pretrained::class_logits(const Tensor& hidden) const {
  if (!classes_.weight.defined()) return {};
  torch::NoGradGuard no_grad;
  const Tensor first = hidden.select(1, 0);
  const Linear& below = config_.family == PretrainedConfig::Family::kRoberta ? dense_ : pooler_;
  return classes_(torch::tanh(below(first)));
}

Tensor Pretrained::next_token_logits(const Tensor& hidden) const {
  if (!config_.is_causal()) return {};
  torch::NoGradGuard no_grad;
  return torch::matmul(hidden, (head_.defined() ? head_ : words_).t());
}

}  // namespace strata
