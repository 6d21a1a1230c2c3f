#include "model/hsa_attention.h"

#include <cmath>

#include "model/rings.h"
#include "model/rotary.h"
#include "strata/hkt.h"
#include "strata/hsa_stream.h"
#include "torch/hsa_op.h"

namespace strata {
namespace {

using torch::Tensor;

constexpr int64_t kVectorSize = 8;  // of learned position vectors

void check_options(const HsaAttentionOptions& o) {
  TORCH_CHECK(o.model_size() >= 1 && o.heads() >= 1 && o.model_size() % o.heads() == 0,
              "model_size: expected a positive multiple of heads, got model_size = ", o.model_size(),
              " and heads = ", o.heads());
  TORCH_CHECK(o.key_heads() >= 0 && (o.key_heads() == 0 || o.heads() % o.key_heads() == 0),
              "key_heads: expected a divisor of heads = ", o.heads(), ", got ", o.key_heads());
  TORCH_CHECK(o.model_size() / o.heads() <= kMaxHeadSize, "heads: expected a head size of at most ", kMaxHeadSize,
              ", got ", o.model_size() / o.heads(), "; use more heads");
  const bool known =
      o.positions() == "none" || o.positions() == "sinusoidal" || o.positions() == "learned" || o.positions() == "bias";
  TORCH_CHECK(known, "positions: expected none, sinusoidal, learned or bias, got \"", o.positions(), "\"");
  TORCH_CHECK(o.tables() >= 1 && o.places() >= 1, "tables, places: expected 1 or more, got ", o.tables(), " and ",
              o.places());
  TORCH_CHECK(o.branching() >= 2 && o.branching() <= kMaxBranching, "branching: expected 2 to ", kMaxBranching,
              ", got ", o.branching());
  const int64_t head_size = o.model_size() / o.heads();
  TORCH_CHECK(o.rotary() >= 0 && o.rotary() % 2 == 0 && o.rotary() <= head_size,
              "rotary: expected an even number of channels, at most the head size ", head_size, ", got ", o.rotary());
  TORCH_CHECK(std::isfinite(o.rotary_base()) && o.rotary_base() > 1, "rotary_base: expected a number above 1, got ",
              o.rotary_base());
  TORCH_CHECK_VALUE(o.attention_dropout() >= 0 && o.attention_dropout() < 1,
                    "attention_dropout: expected a probability from 0 to less than 1, got ", o.attention_dropout());
  TORCH_CHECK_VALUE(o.streaming() || o.attention_dropout() == 0,
                    "attention_dropout: expected 0 with trees, whose tokens share weights; use dropout on the output");
  TORCH_CHECK(!o.streaming() || o.positions() == "none" || o.places() == o.branching(), "places: expected ",
              o.branching(), " like branching in the streaming form, got ", o.places());
}

// Packed sequences each begin at place 0; of others the places need not be given.
Tensor packed_places(const Tensor& x, const std::vector<Tensor>& trees, const c10::optional<Tensor>& cu_seqlens) {
  if (cu_seqlens.has_value()) return places_in_sequences(x.size(1), cu_seqlens->to(torch::kLong).slice(0, 0, -1));
  if (x.size(0) != 1 || trees.size() < 2) return {};
  std::vector<Tensor> places;
  for (const Tensor& tree : trees)
    places.push_back(torch::arange(tree.numel() > 0 ? tree[0].item<int32_t>() : 0, x.options().dtype(torch::kLong)));
  const Tensor all = torch::cat(places);
  TORCH_CHECK(all.size(0) == x.size(1), "trees: cover ", all.size(0), " tokens together, x has ", x.size(1));
  return all;
}

}  // namespace

HsaAttentionImpl::HsaAttentionImpl(const HsaAttentionOptions& options_) : options(options_) {
  check_options(options);
  reset();
}

void HsaAttentionImpl::reset() {
  const int64_t model = options.model_size(), H = options.heads(), tables = options.tables(), places = options.places();
  auto linear = [&](const char* name, int64_t out) {
    return register_module(name,
                           torch::nn::Linear(torch::nn::LinearOptions(model, out).bias(options.projection_bias())));
  };
  query_ = linear("query", model);
  key_ = linear("key", model / H * key_heads());
  value_ = linear("value", model / H * key_heads());
  out_ = linear("out", model);
  if (options.positions() == "bias")
    sibling_bias_ = register_parameter("sibling_bias", torch::zeros({H, tables, places, places}));
  if (options.positions() == "learned") {
    position_vectors_ = register_parameter("position_vectors", 0.02 * torch::randn({H, tables, places, kVectorSize}));
  }
  if (options.positions() == "sinusoidal") {
    sinusoidal_ = options.streaming() ? sinusoidal_positions(1, places).expand({tables, places, places}).contiguous()
                                      : sinusoidal_positions(tables, places);
  }
}

void HsaAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "strata::HsaAttention(model_size=" << options.model_size() << ", heads=" << options.heads()
         << (options.streaming() ? ", streaming, branching=" + std::to_string(options.branching())
                                 : std::string(", tree"))
         << ", energy=" << (options.l2_energy() ? "l2" : "dot") << ", positions=" << options.positions()
         << (options.causal() ? ", causal" : "") << ")";
}

Tensor HsaAttentionImpl::position_table() const {
  if (sibling_bias_.defined()) return sibling_bias_;
  if (position_vectors_.defined()) return torch::matmul(position_vectors_, position_vectors_.transpose(-1, -2));
  if (!sinusoidal_.defined()) return {};
  const Tensor& weight = query_->weight;
  return sinusoidal_.to(weight.options()).unsqueeze(0).expand({options.heads(), -1, -1, -1});
}

std::vector<Tensor> HsaAttentionImpl::project(const Tensor& x, const Tensor& places) {
  const int64_t d = options.model_size() / options.heads();
  auto heads = [&](const Tensor& t, int64_t count) { return t.view({x.size(0), x.size(1), count, d}); };
  Tensor q = heads(query_(x), options.heads()), k = heads(key_(x), key_heads());
  if (options.normalize()) {  // in float under autocast; then back to the type of the values
    q = torch::layer_norm(q, {d}).to(q.scalar_type());
    k = torch::layer_norm(k, {d}).to(k.scalar_type());
  }
  q = q.transpose(1, 2);
  k = k.transpose(1, 2);
  if (options.rotary() > 0) {
    const Tensor at = places.defined() ? places : torch::arange(x.size(1), x.options().dtype(torch::kLong));
    q = rotate(q, at, options.rotary(), options.rotary_base(), options.rotary_interleaved());
    k = rotate(k, at, options.rotary(), options.rotary_base(), options.rotary_interleaved());
  }
  return {q, k, heads(value_(x), key_heads()).transpose(1, 2)};
}

// kappa = -s |k|^2 / 2 makes the dot product the l2 energy.
c10::optional<Tensor> HsaAttentionImpl::key_bias(const Tensor& k, torch::ScalarType compute) const {
  if (!options.l2_energy()) return c10::nullopt;
  return k.to(compute).square().sum(-1) * (-0.5 / std::sqrt(static_cast<double>(k.size(-1))));
}

HsaStreamCache HsaAttentionImpl::start_stream(int64_t batch, int64_t capacity, int64_t history) const {
  TORCH_CHECK(options.streaming(), "start_stream: expected the streaming form; create the module with streaming(true)");
  const int64_t d = options.model_size() / options.heads();
  return HsaStreamCache::empty({batch, key_heads(), options.branching(), /*near=*/1, d, d}, capacity, history,
                               value_->weight.options().requires_grad(false));
}

std::pair<Tensor, HsaStreamCache> HsaAttentionImpl::prefill(const Tensor& x, const c10::optional<Tensor>& lengths,
                                                            int64_t capacity, int64_t history) {
  TORCH_CHECK(options.streaming(), "prefill: expected the streaming form; create the module with streaming(true)");
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options.model_size(), "x: expected shape (batch, tokens, ",
              options.model_size(), "), got ", x.sizes());
  torch::NoGradGuard no_grad;
  HsaStreamCache cache = start_stream(x.size(0), capacity, history);
  const std::vector<int64_t> counts = prompt_lengths(x, lengths);
  if (x.size(1) == 0) return {x, std::move(cache)};
  const Tensor real = without_padding(x, torch::tensor(counts, torch::kLong).to(x.device()));
  const std::vector<Tensor> qkv = project(real);
  const c10::optional<Tensor> bias = key_bias(qkv[1], cache.keys.scalar_type());
  cache.fill(qkv[1], qkv[2], bias.has_value() ? *bias : Tensor(), counts);
  return {forward(real), std::move(cache)};
}

Tensor HsaAttentionImpl::step(const Tensor& x, HsaStreamCache& cache) {
  TORCH_CHECK(options.streaming(), "step: expected the streaming form; create the module with streaming(true)");
  TORCH_CHECK(x.dim() == 2 && x.size(1) == options.model_size(), "x: expected shape (batch, ", options.model_size(),
              "), got ", x.sizes());
  torch::NoGradGuard no_grad;
  cache.before_step();
  const std::vector<Tensor> qkv = project(x.unsqueeze(1), cache.lengths.unsqueeze(1));
  HsaStreamOptions o;
  const Tensor k = qkv[1].squeeze(2);
  o.key_bias = key_bias(k, k.scalar_type());
  if (const Tensor table = position_table(); table.defined()) o.positions = table;
  HsaStreamState state{cache.keys, cache.values, cache.kappas, cache.masses, cache.lengths};
  const Tensor mixed = hsa_stream_step(qkv[0].squeeze(2), k, qkv[2].squeeze(2), state, o);
  cache.count_one();
  return out_(mixed.reshape(x.sizes()));
}

Tensor HsaAttentionImpl::forward(const Tensor& x, const std::vector<Tensor>& trees,
                                 const c10::optional<Tensor>& weights, const c10::optional<Tensor>& cu_seqlens,
                                 int64_t max_seqlen) {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options.model_size(), "x: expected shape (batch, tokens, ",
              options.model_size(), "), got ", x.sizes());
  TORCH_CHECK(options.streaming() == trees.empty() || x.size(0) == 0,
              options.streaming() ? "trees: expected none in the streaming form"
                                  : "trees: expected one per sequence, got none");
  TORCH_CHECK(options.streaming() || !cu_seqlens.has_value(),
              "cu_seqlens: expected none with trees, which pack by themselves");
  Tensor real = x;  // the contents of padding must not reach the gradients of the projections (0 * NaN)
  if (weights.has_value()) real = x.masked_fill(weights->eq(0).unsqueeze(-1), 0.0);
  const std::vector<Tensor> qkv = project(real, options.rotary() > 0 ? packed_places(x, trees, cu_seqlens) : Tensor());
  const auto compute = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  c10::optional<Tensor> positions, typed_weights;
  if (const Tensor table = position_table(); table.defined()) positions = table.to(compute);
  if (weights.has_value()) typed_weights = weights->to(compute);
  Tensor mixed;
  if (options.streaming()) {
    HsaStreamOptions o;
    o.branching = options.branching();
    o.weights = typed_weights;
    o.key_bias = key_bias(qkv[1], compute);
    o.positions = positions;
    o.dropout = is_training() ? options.attention_dropout() : 0.0;
    o.cu_seqlens = cu_seqlens;
    o.max_seqlen = max_seqlen;
    mixed = std::get<0>(hsa_stream_attention(qkv[0], qkv[1], qkv[2], o));
  } else {
    HsaOptions o;
    o.weights = typed_weights;
    o.key_bias = key_bias(qkv[1], compute);
    o.positions = positions;
    o.causal = options.causal();
    mixed = std::get<0>(hsa_attention(qkv[0], qkv[1], qkv[2], trees, o));
  }
  return out_(mixed.transpose(1, 2).reshape(x.sizes()));
}

}  // namespace strata
