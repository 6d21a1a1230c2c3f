// Decoding: prefill() and step() of the module, and the cache between them (docs/MATH.md, section 1.5).
#include "model/hkt_cache.h"

#include <cmath>

#include "model/hkt_attention.h"
#include "model/rings.h"
#include "strata/hkt.h"
#include "torch/hkt_op.h"

namespace strata {
namespace {

using torch::Tensor;
using torch::indexing::Slice;

Tensor with_capacity(const Tensor& cached, int64_t capacity) {
  if (cached.size(2) >= capacity) return cached;
  return torch::constant_pad_nd(cached, {0, 0, 0, capacity - cached.size(2)});
}

// The newest row of level l of sequences of these lengths; -1 of empty ones.
Tensor newest_row(const Tensor& lengths, int64_t l) { return (lengths - 1).div(int64_t{1} << l, "floor"); }

torch::ScalarType compute_type(torch::ScalarType type) {
  return type == torch::kDouble ? torch::kDouble : torch::kFloat;
}

// hkt_decode by operators of torch, on any device and without a copy to the host: (B, H, 1, dv) for q: (B, H, 1, d),
// rings k: (B, Hk, capacity_l, d) and v: (B, Hk, capacity, dv). Of the tokens before the newest only `window` are seen.
//
//   S_j = s sum_l a_l <q^(l), k^(l)_{j >> l}>      for the token j of each slot of v
Tensor decode_rings(const std::vector<Tensor>& q, const std::vector<Tensor>& k, const Tensor& v, const Tensor& weights,
                    const Tensor& lengths, int64_t window) {
  const int64_t B = v.size(0), Hk = v.size(1), group = q[0].size(1) / Hk, d = q[0].size(3);
  const auto compute = compute_type(v.scalar_type());
  const Tensor tokens = latest_rows(lengths - 1, v.size(2));  // (B, capacity)
  Tensor scores;
  for (size_t l = 0; l < q.size(); ++l) {
    const Tensor grouped = q[l].to(compute).reshape({B, Hk, group, d});
    const Tensor a = weights.select(1, static_cast<int64_t>(l)).to(compute).view({1, Hk, group, 1});
    Tensor products = a * torch::matmul(grouped, k[l].to(compute).transpose(2, 3));  // (B, Hk, G, capacity_l)
    if (l > 0) {
      const Tensor slots = tokens.clamp_min(0).div(int64_t{1} << l, "floor").remainder(k[l].size(2));
      products = products.gather(3, slots.view({B, 1, 1, -1}).expand({-1, Hk, group, -1}));
    }
    scores = l == 0 ? products : scores + products;
  }
  Tensor hidden = tokens.lt(0);
  if (window >= 0) hidden = hidden.logical_or(tokens < (lengths - 1 - window).unsqueeze(1));
  scores = (scores / std::sqrt(static_cast<double>(d)))
               .masked_fill(hidden.view({B, 1, 1, -1}), -std::numeric_limits<double>::infinity());
  return torch::matmul(torch::softmax(scores, -1), v.to(compute))
      .reshape({B, Hk * group, 1, v.size(3)})
      .to(v.scalar_type());
}

}  // namespace

void HktCache::reserve(int64_t tokens) {
  if (window >= 0 || values.size(2) >= tokens) return;
  const int64_t capacity = std::max<int64_t>({tokens, 2 * values.size(2), 16});
  values = with_capacity(values, capacity);
  for (size_t l = 0; l < levels.size(); ++l) {
    levels[l].keys = with_capacity(levels[l].keys, hkt_level_tokens(capacity, static_cast<int>(l)));
  }
}

void HktCache::reorder(const std::vector<int64_t>& indices) {
  const Tensor chosen = reorder_lengths(indices);
  values = values.index_select(0, chosen);
  if (inputs.defined()) inputs = inputs.index_select(0, chosen);
  for (Level& level : levels) {
    level = {level.keys.index_select(0, chosen), level.queries.index_select(0, chosen),
             level.states.index_select(0, chosen)};
  }
}

CacheState HktCache::state() const {
  CacheState named = {{"values", values}, {"window", torch::tensor({window})}};
  add_state(named);
  if (inputs.defined()) named.emplace_back("inputs", inputs);
  for (size_t l = 0; l < levels.size(); ++l) {
    const std::string prefix = "level_" + std::to_string(l) + ".";
    named.emplace_back(prefix + "keys", levels[l].keys);
    named.emplace_back(prefix + "queries", levels[l].queries);
    named.emplace_back(prefix + "states", levels[l].states);
  }
  return named;
}

HktCache HktCache::from_state(const CacheState& state) {
  const char* kName = "HktCache";
  HktCache cache;
  const bool unlimited = !has_tensor(state, "inputs") && !has_tensor(state, "level_1.keys");
  cache.take_state(state, kName);
  cache.values = take_tensor(state, "values", kName);
  const Tensor window = take_tensor(state, "window", kName);
  TORCH_CHECK(window.numel() == 1 && window.scalar_type() == torch::kLong, "HktCache: window: expected one int64");
  cache.window = window.item<int64_t>();
  if (unlimited && cache.window < 0)
    cache.begin(cache.counts(), cache.history(), /*unlimited=*/true, cache.lengths.device());
  if (has_tensor(state, "inputs")) cache.inputs = take_tensor(state, "inputs", kName);
  for (int l = 0; has_tensor(state, "level_" + std::to_string(l) + ".keys"); ++l) {
    const std::string prefix = "level_" + std::to_string(l) + ".";
    cache.levels.push_back({take_tensor(state, prefix + "keys", kName), take_tensor(state, prefix + "queries", kName),
                            take_tensor(state, prefix + "states", kName)});
  }
  return cache;
}

std::pair<Tensor, HktCache> HktAttentionImpl::prefill(const Tensor& x, const c10::optional<Tensor>& lengths,
                                                      const HktCacheOptions& o) {
  TORCH_CHECK(options.causal(), "prefill: expected a causal module; create it with causal(true)");
  TORCH_CHECK(o.window() >= -1, "window: expected 0 or more tokens before the newest, or -1 for all, got ", o.window());
  TORCH_CHECK(o.capacity() >= 0, "capacity: expected 0 or more tokens, got ", o.capacity());
  torch::NoGradGuard no_grad;
  TORCH_CHECK(!options.alibi(), "prefill: expected a module without alibi, whose scores no cache has; use rotary()");
  const int64_t window = o.window() >= 0 ? o.window() : options.window_left(), history = o.history();
  const bool windowed = window >= 0;
  HktCache cache;
  cache.window = window;
  cache.begin(prompt_lengths(x, lengths), history, !windowed && options.levels() == 1 && !options.input_filter(),
              x.device());
  // An empty prompt has no rows to gather from; use one of zeros instead.
  const Tensor real =
      x.size(1) > 0 ? without_padding(x, cache.lengths) : torch::zeros({x.size(0), 1, x.size(2)}, x.options());
  const std::vector<Tensor> states = newest_states(real, cache.lengths, history, cache.inputs);
  const Projected p = project_all(real);
  for (int64_t l = 0; l < options.levels(); ++l) {
    const Tensor newest = newest_row(cache.lengths, l);
    const int64_t slots = window + history + 1, rows = l == 0 ? slots : ((window + history) >> l) + 2;
    cache.levels.push_back({windowed ? ring_of(p.k[l], newest, rows) : p.k[l].contiguous(),
                            ring_of(p.q[l], newest, 1 + ceil_div(history, int64_t{1} << l)), states[l]});
    if (l == 0) cache.values = windowed ? ring_of(p.v, newest, slots) : p.v.contiguous();
  }
  cache.reserve(o.capacity());
  return {attend(x, HktInput().lengths(lengths).window_left(window)), cache};
}

std::vector<Tensor> HktAttentionImpl::newest_states(const Tensor& x, const Tensor& lengths, int64_t history,
                                                    Tensor& inputs) const {
  const std::vector<Tensor> all = pyramid(x);
  std::vector<Tensor> newest;
  for (int64_t l = 0; l < options.levels(); ++l) {
    const int64_t size = options.taps() + ceil_div(history, int64_t{1} << l);
    newest.push_back(ring_of(all[l].unsqueeze(1), newest_row(lengths, l), size).squeeze(1));
  }
  if (options.input_filter()) inputs = ring_of(x.unsqueeze(1), lengths - 1, options.taps() + history).squeeze(1);
  return newest;
}

Tensor HktAttentionImpl::advance(const Tensor& x, const CacheLengths& at, Tensor& inputs,
                                 const std::function<Tensor&(int64_t level)>& states, const TakeRow& take) {
  const Tensor& position = at.lengths;
  Tensor sequences = torch::arange(x.size(0), position.options());  // those that get a new state on the current level
  Tensor rows = x;
  if (options.input_filter()) {
    inputs.index_put_({sequences, position.remainder(inputs.size(1))}, x);
    rows = filter_newest(inputs, position, filters_[0]);
  }
  const Tensor v = split_heads(value_(rows.unsqueeze(1)), key_heads());
  for (int64_t l = 0;; ++l) {
    const Tensor row = position.index_select(0, sequences).div(int64_t{1} << l, "floor");
    auto [q, k] = project(rows.unsqueeze(1), l, row.unsqueeze(1));
    take(l, sequences, row, q, k);
    if (l + 1 == options.levels()) return v;
    Tensor& ring = states(l);
    ring.index_put_({sequences, row.remainder(ring.size(1))}, rows);
    // The host knows which sequences begin a row of the next level: nothing waits for the device.
    sequences = multiples(at.counts(), int64_t{2} << l, x.device());
    if (sequences.size(0) == 0) return v;
    const Tensor newest = position.index_select(0, sequences).div(int64_t{1} << l, "floor");
    rows = filter_newest(ring.index_select(0, sequences), newest, filters_[l + 1]);
  }
}

Tensor HktAttentionImpl::step(const Tensor& x, HktCache& cache) {
  TORCH_CHECK(options.causal(), "step: expected a causal module; create it with causal(true)");
  TORCH_CHECK(static_cast<int64_t>(cache.levels.size()) == options.levels(), "cache: expected ", options.levels(),
              " levels, as in the module, got ", cache.levels.size());
  TORCH_CHECK(x.dim() == 2 && x.size(0) == cache.lengths.size(0) && x.size(1) == options.model_size(),
              "x: expected shape (", cache.lengths.size(0), ", ", options.model_size(), "), got ", x.sizes());
  torch::NoGradGuard no_grad;
  const int64_t B = x.size(0);
  if (B == 0) return x;
  cache.reserve(*std::max_element(cache.counts().begin(), cache.counts().end()) + 1);
  const Tensor v = advance(
      x, cache, cache.inputs, [&](int64_t l) -> Tensor& { return cache.levels[l].states; },
      [&](int64_t l, const Tensor& sequences, const Tensor& row, const Tensor& q, const Tensor& k) {
        HktCache::Level& level = cache.levels[l];
        level.queries.index_put_({sequences, Slice(), row.remainder(level.queries.size(2))}, q.squeeze(2));
        level.keys.index_put_({sequences, Slice(), row.remainder(level.keys.size(2))}, k.squeeze(2));
      });
  const Tensor sequences = torch::arange(B, cache.lengths.options());
  cache.values.index_put_({sequences, Slice(), cache.lengths.remainder(cache.values.size(2))}, v.squeeze(2));
  std::vector<Tensor> q, k;
  for (size_t l = 0; l < cache.levels.size(); ++l) {
    q.push_back(newest_of(cache.levels[l].queries, cache.lengths.div(int64_t{1} << l, "floor")));
    k.push_back(cache.levels[l].keys);
  }
  cache.lengths += 1;
  cache.count_one();
  const Tensor weights = level_weights().to(compute_type(v.scalar_type()));
  const bool plain = cache.window < 0 && !x.is_cuda();
  const Tensor mixed = plain ? hkt_decode(q, k, cache.values, weights, cache.lengths)
                             : decode_rings(q, k, cache.values, weights, cache.lengths, cache.window);
  return out_(mixed.reshape({B, options.model_size()}));
}

}  // namespace strata
