// Decoding: prefill() and step() of the module, and the cache between them (docs/MATH.md, section 1.5).
#include "model/hkt_cache.h"

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

HktAttentionImpl::Projected HktAttentionImpl::project_newest(const Tensor& x, const Tensor& lengths,
                                                             const Tensor& inputs, const std::vector<Tensor>& states) {
  const int64_t levels = options.levels();
  Tensor newest = x.unsqueeze(1);  // (B, levels, model)
  if (levels > 1 || options.input_filter()) {
    const std::vector<Tensor> filters(filters_.begin() + (options.input_filter() ? 0 : 1), filters_.end());
    const auto ring = inputs.defined() ? c10::optional<Tensor>(inputs) : c10::nullopt;
    newest = pyramid_step(x, filters, ring, at::TensorList(states).slice(0, levels - 1), lengths);
  }
  Tensor positions;  // (B, levels)
  if (options.rotary() > 0) {
    const Tensor level = torch::arange(levels, lengths.options());
    positions = lengths.unsqueeze(1).bitwise_right_shift(level).bitwise_left_shift(level);
  }
  Projected rows;
  if (options.per_level_projections()) {
    for (int64_t l = 0; l < levels; ++l) {
      auto [q, k] = project_at(newest.narrow(1, l, 1), l, positions.defined() ? positions.narrow(1, l, 1) : positions);
      rows.q.push_back(q);
      rows.k.push_back(k);
    }
  } else {
    const auto [q, k] = project_at(newest, 0, positions);
    for (int64_t l = 0; l < levels; ++l) {
      rows.q.push_back(q.narrow(2, l, 1));
      rows.k.push_back(k.narrow(2, l, 1));
    }
  }
  rows.v = split_heads(value_(newest.narrow(1, 0, 1)), key_heads());
  return rows;
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
  std::vector<Tensor> queries, keys, states;
  for (const HktCache::Level& level : cache.levels) {
    queries.push_back(level.queries);
    keys.push_back(level.keys);
    states.push_back(level.states);
  }
  if (has_same_launches(x)) {
    const Projected rows = project_newest(x, cache.lengths, cache.inputs, states);
    hkt_append(rows.q, rows.k, rows.v, queries, keys, cache.values, cache.lengths);
  } else {
    const Tensor v = advance(
        x, cache, cache.inputs, [&](int64_t l) -> Tensor& { return cache.levels[l].states; },
        [&](int64_t l, const Tensor& sequences, const Tensor& row, const Tensor& q, const Tensor& k) {
          queries[l].index_put_({sequences, Slice(), row.remainder(queries[l].size(2))}, q.squeeze(2));
          keys[l].index_put_({sequences, Slice(), row.remainder(keys[l].size(2))}, k.squeeze(2));
        });
    const Tensor sequences = torch::arange(B, cache.lengths.options());
    cache.values.index_put_({sequences, Slice(), cache.lengths.remainder(cache.values.size(2))}, v.squeeze(2));
  }
  cache.lengths += 1;
  cache.count_one();
  const auto compute = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const Tensor mixed = hkt_decode(queries, keys, cache.values, level_weights().to(compute), cache.lengths,
                                  /*scale=*/c10::nullopt, cache.window);
  return out_(mixed.reshape({B, options.model_size()}));
}

}  // namespace strata
