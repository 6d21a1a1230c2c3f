#include "model/hkt_attention.h"

#include <cmath>

#include "model/hkt_cache.h"
#include "model/hkt_project.h"
#include "model/rotary.h"
#include "strata/hkt.h"
#include "torch/hkt_op.h"

namespace strata {
namespace {

using torch::Tensor;

constexpr double kFilterNoise = 0.02;

void check_options(const HktAttentionOptions& o) {
  TORCH_CHECK(o.model_size() >= 1 && o.heads() >= 1 && o.model_size() % o.heads() == 0,
              "model_size: expected a positive multiple of heads, got model_size = ", o.model_size(),
              " and heads = ", o.heads());
  TORCH_CHECK(o.key_heads() >= 0 && (o.key_heads() == 0 || o.heads() % o.key_heads() == 0),
              "key_heads: expected a divisor of heads = ", o.heads(), ", got ", o.key_heads());
  TORCH_CHECK(o.model_size() / o.heads() <= kMaxHeadSize, "heads: expected a head size of at most ", kMaxHeadSize,
              ", got model_size / heads = ", o.model_size() / o.heads(), "; use more heads");
  TORCH_CHECK(o.levels() >= 1 && o.levels() <= kMaxLevels, "levels: expected 1 to ", kMaxLevels, ", got ", o.levels());
  TORCH_CHECK(o.taps() >= 1, "taps: expected 1 or more, got ", o.taps());
  TORCH_CHECK(!o.psd() || o.key_heads() == 0 || o.key_heads() == o.heads(),
              "psd: expected key_heads = heads = ", o.heads(),
              ", because the keys are made from the queries; got key_heads = ", o.key_heads());
  const std::vector<double>& fixed = o.fixed_level_weights();
  double sum = 0;
  for (const double weight : fixed) sum += weight >= 0 ? weight : std::nan("");
  TORCH_CHECK_VALUE(fixed.empty() || (static_cast<int64_t>(fixed.size()) == o.levels() && std::abs(sum - 1) < 1e-6),
                    "fixed_level_weights: expected ", o.levels(),
                    " weights, one per level, none below 0, with the sum 1, got ", fixed);
  TORCH_CHECK_VALUE(o.attention_dropout() >= 0 && o.attention_dropout() < 1,
                    "attention_dropout: expected a probability from 0 to less than 1, got ", o.attention_dropout());
  const int64_t head_size = o.model_size() / o.heads();
  TORCH_CHECK(o.rotary() >= 0 && o.rotary() % 2 == 0 && o.rotary() <= head_size,
              "rotary: expected an even number of channels, at most the head size ", head_size, ", got ", o.rotary());
  TORCH_CHECK(std::isfinite(o.rotary_base()) && o.rotary_base() > 1, "rotary_base: expected a number above 1, got ",
              o.rotary_base());
  TORCH_CHECK(!o.psd() || o.rotary() == 0,
              "psd: expected rotary = 0, because the kernel of rotated queries and keys is not positive semi-definite; "
              "got ",
              o.rotary());
}

// (H, levels), whose softmax is uniform, or what is fixed. exp(kNever) is 0 in every type.
Tensor initial_logits(const HktAttentionOptions& options) {
  constexpr double kNever = -1e4;
  const Tensor logits = torch::zeros({options.heads(), options.levels()});
  const std::vector<double>& fixed = options.fixed_level_weights();
  for (size_t l = 0; l < fixed.size(); ++l)
    logits.select(1, static_cast<int64_t>(l)).fill_(fixed[l] > 0 ? std::log(fixed[l]) : kNever);
  return logits;
}

}  // namespace

HktAttentionImpl::HktAttentionImpl(const HktAttentionOptions& options_) : options(options_) {
  check_options(options);
  reset();
}

void HktAttentionImpl::reset() {
  const int64_t model = options.model_size();
  const int64_t key_heads = this->key_heads();
  const int64_t sets = options.per_level_projections() ? options.levels() : 1;
  auto linear = [&](int64_t in, int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options.projection_bias()));
  };
  // One parameter set for all levels under `name`, or one per level under name_0, name_1, ..
  auto set_name = [&](const std::string& name, int64_t set) {
    return options.per_level_projections() ? name + "_" + std::to_string(set) : name;
  };
  auto register_projections = [&](const std::string& name, int64_t out) {
    std::vector<torch::nn::Linear> projections;
    for (int64_t set = 0; set < sets; ++set)
      projections.push_back(register_module(set_name(name, set), linear(model, out)));
    return projections;
  };

  queries_ = register_projections("query", model);
  keys_.clear();
  directions_.clear();
  if (options.psd()) {
    for (int64_t set = 0; set < sets; ++set) {
      const Tensor noise = kFilterNoise * torch::randn({options.heads(), head_size(), head_size()});
      directions_.push_back(register_parameter(set_name("direction", set), noise));
    }
  } else {
    keys_ = register_projections("key", key_heads * head_size());
  }
  value_ = register_module("value", linear(model, key_heads * head_size()));
  out_ = register_module("out", linear(model, model));

  filters_.assign(options.levels(), Tensor());
  for (int64_t l = options.input_filter() ? 0 : 1; l < options.levels(); ++l) {
    filters_[l] = register_parameter("filter_" + std::to_string(l), initial_filter(/*identity=*/l == 0));
  }
  level_logits_ = register_parameter("level_logits", initial_logits(options), options.fixed_level_weights().empty());
}

// The mean of the taps (or, in front of everything, the newest token) plus a little noise.
Tensor HktAttentionImpl::initial_filter(bool identity) const {
  const int64_t C = options.model_size(), taps = options.taps();
  Tensor weight = torch::zeros({taps, C});
  if (identity) {
    weight[0].fill_(1.0);
  } else {
    weight.fill_(1.0 / static_cast<double>(taps));
  }
  if (options.dense_filters()) weight = torch::diag_embed(weight);
  return weight + kFilterNoise * torch::randn_like(weight);
}

void HktAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "strata::HktAttention(model_size=" << options.model_size() << ", heads=" << options.heads()
         << ", levels=" << options.levels() << ", taps=" << options.taps()
         << ", filters=" << (options.dense_filters() ? "dense" : "depthwise") << (options.psd() ? ", psd" : "")
         << (options.causal() ? ", causal" : "") << ")";
}

// In bfloat16 a row would not sum to one.
Tensor HktAttentionImpl::level_weights() const {
  return torch::softmax(level_logits_, -1,
                        level_logits_.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
}

std::vector<Tensor> HktAttentionImpl::pyramid(const Tensor& x, const c10::optional<Tensor>& cu_seqlens) const {
  std::vector<Tensor> states = {filters_[0].defined() ? causal_filter(x, filters_[0], 1, cu_seqlens) : x};
  c10::optional<Tensor> ends = cu_seqlens;
  for (int64_t l = 1; l < options.levels(); ++l) {
    states.push_back(causal_filter(states.back(), filters_[l], 2, ends));
    if (ends.has_value()) ends = torch::constant_pad_nd((ends->diff() + 1).bitwise_right_shift(1).cumsum(0), {1, 0});
  }
  return states;
}

Tensor HktAttentionImpl::split_heads(const Tensor& x, int64_t heads) const {
  return x.view({x.size(0), x.size(1), heads, head_size()}).transpose(1, 2);
}

std::pair<Tensor, Tensor> HktAttentionImpl::project(const Tensor& states, int64_t level, const Tensor& rows) {
  return project_at(states, options.per_level_projections() ? level : 0, row_positions(states, level, rows));
}

std::pair<Tensor, Tensor> HktAttentionImpl::project_at(const Tensor& states, int64_t set, const Tensor& positions) {
  Tensor q = split_heads(queries_[set](states), options.heads());
  if (options.psd()) {
    // k = q (I + Omega)^T = q + q Omega^T with Omega = A - A^T, hence Omega^T = A^T - A.
    const Tensor& A = directions_[set];
    return {q, q + torch::matmul(q, A.transpose(-1, -2) - A)};
  }
  Tensor k = split_heads(keys_[set](states), key_heads());
  rotate_at(q, k, positions);
  return {q, k};
}

Tensor HktAttentionImpl::row_positions(const Tensor& states, int64_t level, const Tensor& rows) const {
  if (options.rotary() == 0) return {};  // row m of level l stands at token m 2^l
  const Tensor all = rows.defined() ? rows : torch::arange(states.size(-2), states.options().dtype(torch::kLong));
  return all * (int64_t{1} << level);
}

void HktAttentionImpl::rotate_at(Tensor& q, Tensor& k, const Tensor& positions) const {
  if (options.rotary() == 0) return;
  q = rotate(q, positions, options.rotary(), options.rotary_base(), options.rotary_interleaved());
  k = rotate(k, positions, options.rotary(), options.rotary_base(), options.rotary_interleaved());
}

HktAttentionImpl::Projected HktAttentionImpl::project_levels_at_once(const Tensor& x,
                                                                     const c10::optional<Tensor>& lengths) const {
  if (options.psd() || options.per_level_projections() || options.projection_bias() || options.input_filter())
    return {};
  const PyramidInput input = {x, lengths.value_or(Tensor()), {filters_.begin() + 1, filters_.end()}};
  const HktProjections weights = {queries_[0]->weight, keys_[0]->weight, value_->weight};
  if (!projects_at_once(input, weights)) return {};
  strata::Projected all = project_at_once(input, weights, head_size());
  for (int64_t l = 0; l < options.levels(); ++l) rotate_at(all.q[l], all.k[l], row_positions(all.q[l], l, {}));
  return {all.q, all.k, all.v};
}

namespace {

// What padding holds must not reach the gradients of the projections either (0 * NaN).
Tensor without_padding(const Tensor& x, const c10::optional<Tensor>& lengths) {
  if (!lengths.has_value()) return x;
  const Tensor padding = torch::arange(x.size(1), lengths->options()) >= lengths->unsqueeze(1);
  return x.masked_fill(padding.unsqueeze(-1), 0.0);
}

}  // namespace

HktAttentionImpl::Projected HktAttentionImpl::project_all(const Tensor& x, const c10::optional<Tensor>& cu_seqlens,
                                                          const c10::optional<Tensor>& lengths) {
  if (!cu_seqlens.has_value()) {
    Projected at_once = project_levels_at_once(x, lengths);
    if (!at_once.q.empty()) return at_once;
  }
  const std::vector<Tensor> states = pyramid(without_padding(x, lengths), cu_seqlens);
  const bool places = cu_seqlens.has_value() && options.rotary() > 0 && cu_seqlens->size(0) > 1;
  const Tensor begins = places ? packed_begins(*cu_seqlens, options.levels()) : Tensor();
  Projected all;
  for (int64_t l = 0; l < options.levels(); ++l) {
    auto [q, k] = project(states[l], l, places ? places_in_sequences(states[l].size(1), begins[l]) : Tensor());
    all.q.push_back(q);
    all.k.push_back(k);
  }
  all.v = split_heads(value_(states[0]), key_heads());
  return all;
}

Tensor HktAttentionImpl::forward(const Tensor& x, const c10::optional<Tensor>& lengths,
                                 const c10::optional<Tensor>& bias) {
  return attend(x, HktInput().lengths(lengths).bias(bias));
}

Tensor HktAttentionImpl::attend(const Tensor& x, const HktInput& input) {
  auto check = [&](const char* name, const Tensor& source) {
    TORCH_CHECK(source.dim() == 3 && source.size(2) == options.model_size(), name, ": expected shape (batch, tokens, ",
                options.model_size(), "), got ", source.sizes());
  };
  auto check_lengths = [](const char* name, const Tensor& source, const c10::optional<Tensor>& lengths) {
    TORCH_CHECK(!lengths.has_value() || (lengths->dim() == 1 && lengths->size(0) == source.size(0)), name,
                ": expected shape (", source.size(0), "), got ", lengths->sizes());
  };
  check("x", x);
  if (input.key().has_value()) check("key", *input.key());
  check_lengths("lengths", x, input.lengths());
  Projected p = project_all(x, input.cu_seqlens(), input.lengths());
  if (input.key().has_value()) {
    TORCH_CHECK_VALUE(!options.psd(), "key: expected none with psd, whose keys are made from the queries");
    check_lengths("key_lengths", *input.key(), input.key_lengths());
    Projected keys =
        project_all(*input.key(), input.key_cu_seqlens().has_value() ? input.key_cu_seqlens() : input.cu_seqlens(),
                    input.key_lengths());
    p.k = keys.k;
    p.v = keys.v;
  }
  auto out = [&](const Tensor& mixed) {
    return out_(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), options.model_size()}));
  };
  if (in_place_of_softmax) {
    TORCH_CHECK(options.levels() == 1, "in_place_of_softmax: expected a module with one level, got ", options.levels());
    return out(in_place_of_softmax(p.q[0], p.k[0], p.v));
  }
  const auto compute = p.v.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  HktOptions attention;
  attention.lengths = input.lengths();
  attention.key_lengths = input.key_lengths();
  attention.bias = input.bias();
  attention.causal = options.causal();
  attention.window_left = input.window_left().value_or(options.window_left());
  attention.window_right = options.window_right();
  if (options.alibi()) {
    const Tensor steps = torch::arange(1, options.heads() + 1, p.v.options().dtype(compute));
    attention.slopes = torch::exp2(steps * (-8.0 / static_cast<double>(options.heads())));
  }
  attention.dropout = is_training() ? options.attention_dropout() : 0.0;
  attention.cu_seqlens = input.cu_seqlens();
  attention.key_cu_seqlens = input.key_cu_seqlens();
  attention.max_seqlen = input.max_seqlen();
  attention.key_max_seqlen = input.key_max_seqlen();
  return out(std::get<0>(hkt_attention(p.q, p.k, p.v, level_weights().to(compute), attention)));
}

}  // namespace strata
