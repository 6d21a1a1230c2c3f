// Decoding: prefill() and step() of the module, and the cache between them (docs/MATH.md, section 1.5).
#include "model/hkt_cache.h"

#include <map>

#include "model/hkt_attention.h"
#include "strata/hkt.h"
#include "torch/hkt_op.h"

namespace strata {
namespace {

using torch::Tensor;
using torch::indexing::Slice;

// Rows n - taps .. n - 1 of each sequence of states (B, T, C), where n = counts[b]; rows before 0 are zeros.
Tensor newest_rows(const Tensor& states, const Tensor& counts, int64_t taps) {
  const Tensor rows = counts.unsqueeze(1) + torch::arange(-taps, 0, counts.options());  // (B, taps)
  const Tensor index = rows.clamp_min(0).unsqueeze(-1).expand({-1, -1, states.size(2)});
  return states.gather(1, index).masked_fill(rows.lt(0).unsqueeze(-1), 0.0);
}

// Rows of level l of sequences of these lengths: ceil(length / 2^l).
Tensor level_counts(const Tensor& lengths, int64_t l) {
  return (lengths + ((int64_t{1} << l) - 1)).div(int64_t{1} << l, "floor");
}

Tensor with_capacity(const Tensor& cached, int64_t capacity) {
  if (cached.size(2) >= capacity) return cached;
  return torch::constant_pad_nd(cached, {0, 0, 0, capacity - cached.size(2)});
}

// Drops the oldest row of the given sequences and appends a new one: `recent` is (B, taps, C), `states` (n, C).
void push_recent(Tensor& recent, const Tensor& sequences, const Tensor& states) {
  const Tensor kept = recent.index_select(0, sequences).narrow(1, 1, recent.size(1) - 1);
  recent.index_copy_(0, sequences, torch::cat({kept, states.unsqueeze(1)}, 1));
}

// The filter's output at the newest row: the window holds exactly `taps` rows, so it is the last output of stride 1.
Tensor filter_newest(const Tensor& recent, const Tensor& filter) {
  return causal_filter(recent, filter, 1).select(1, recent.size(1) - 1);
}

}  // namespace

void HktCache::reserve(int64_t tokens) {
  if (values.size(2) >= tokens) return;
  const int64_t capacity = std::max<int64_t>({tokens, 2 * values.size(2), 16});
  values = with_capacity(values, capacity);
  for (size_t l = 0; l < levels.size(); ++l) {
    levels[l].keys = with_capacity(levels[l].keys, hkt_level_tokens(capacity, static_cast<int>(l)));
  }
}

std::vector<std::pair<std::string, Tensor>> HktCache::state() const {
  std::vector<std::pair<std::string, Tensor>> named = {{"lengths", lengths}, {"values", values}};
  if (recent_inputs.defined()) named.emplace_back("recent_inputs", recent_inputs);
  for (size_t l = 0; l < levels.size(); ++l) {
    const std::string prefix = "level_" + std::to_string(l) + ".";
    named.emplace_back(prefix + "keys", levels[l].keys);
    named.emplace_back(prefix + "queries", levels[l].queries);
    named.emplace_back(prefix + "recent", levels[l].recent);
  }
  return named;
}

HktCache HktCache::from_state(const std::vector<std::pair<std::string, Tensor>>& state) {
  const std::map<std::string, Tensor> named(state.begin(), state.end());
  auto take = [&](const std::string& name) {
    const auto found = named.find(name);
    TORCH_CHECK(found != named.end(), "HktCache: expected a tensor named \"", name,
                "\", found none; was this state written by HktCache::state()?");
    return found->second.clone();
  };
  HktCache cache;
  cache.lengths = take("lengths");
  cache.values = take("values");
  if (named.count("recent_inputs") > 0) cache.recent_inputs = take("recent_inputs");
  for (int l = 0; named.count("level_" + std::to_string(l) + ".keys") > 0; ++l) {
    const std::string prefix = "level_" + std::to_string(l) + ".";
    cache.levels.push_back({take(prefix + "keys"), take(prefix + "queries"), take(prefix + "recent")});
  }
  return cache;
}

std::pair<Tensor, HktCache> HktAttentionImpl::prefill(const Tensor& x, const c10::optional<Tensor>& lengths) {
  TORCH_CHECK(options.causal(), "prefill: expected a causal module; create it with causal(true)");
  torch::NoGradGuard no_grad;
  const Tensor y = forward(x, lengths);
  HktCache cache;
  const int64_t B = x.size(0);
  cache.lengths = lengths.has_value() ? lengths->to(torch::kLong).clone()
                                      : torch::full({B}, x.size(1), x.options().dtype(torch::kLong));
  const std::vector<Tensor> recent = recent_states(x, cache.lengths, cache.recent_inputs);
  // An empty prompt has no rows to gather from; use one of zeros instead.
  const Projected p = project_all(x.size(1) > 0 ? x : torch::zeros({B, 1, x.size(2)}, x.options()));
  for (int64_t l = 0; l < options.levels(); ++l) {
    const Tensor counts = level_counts(cache.lengths, l);
    const Tensor last = (counts - 1).clamp_min(0).view({B, 1, 1, 1}).expand({-1, p.q[l].size(1), 1, p.q[l].size(3)});
    cache.levels.push_back({p.k[l].contiguous(), p.q[l].gather(2, last), recent[l]});
  }
  cache.values = p.v.contiguous();
  return {y, cache};
}

std::vector<Tensor> HktAttentionImpl::recent_states(const Tensor& x, const Tensor& lengths,
                                                    Tensor& recent_inputs) const {
  const Tensor padded = x.size(1) > 0 ? x : torch::zeros({x.size(0), 1, x.size(2)}, x.options());
  const std::vector<Tensor> states = pyramid(padded);
  std::vector<Tensor> recent;
  for (int64_t l = 0; l < options.levels(); ++l)
    recent.push_back(newest_rows(states[l], level_counts(lengths, l), options.taps()));
  if (options.input_filter()) recent_inputs = newest_rows(padded, lengths, options.taps());
  return recent;
}

Tensor HktAttentionImpl::advance(const Tensor& x, const Tensor& position, Tensor& recent_inputs,
                                 const std::function<Tensor&(int64_t level)>& recent, const TakeRow& take) {
  Tensor sequences = torch::arange(x.size(0), position.options());  // those that get a new state on the current level
  Tensor states = x;
  if (options.input_filter()) {
    push_recent(recent_inputs, sequences, x);
    states = filter_newest(recent_inputs, filters_[0]);
  }
  const Tensor v = split_heads(value_(states.unsqueeze(1)), key_heads());
  for (int64_t l = 0; l < options.levels() && sequences.size(0) > 0; ++l) {
    const Tensor row = position.index_select(0, sequences).div(int64_t{1} << l, "floor");
    auto [q, k] = project(states.unsqueeze(1), l, row.unsqueeze(1));
    take(l, sequences, row, q, k);
    push_recent(recent(l), sequences, states);
    if (l + 1 == options.levels()) break;
    sequences = sequences.masked_select(row.remainder(2).eq(0));
    states = filter_newest(recent(l).index_select(0, sequences), filters_[l + 1]);
  }
  return v;
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
  cache.reserve(cache.lengths.max().item<int64_t>() + 1);
  const Tensor position = cache.lengths.clone();
  const Tensor v = advance(
      x, position, cache.recent_inputs, [&](int64_t l) -> Tensor& { return cache.levels[l].recent; },
      [&](int64_t l, const Tensor& sequences, const Tensor& row, const Tensor& q, const Tensor& k) {
        cache.levels[l].queries.index_copy_(0, sequences, q);
        cache.levels[l].keys.index_put_({sequences, Slice(), row}, k.squeeze(2));
      });
  cache.values.index_put_({torch::arange(B, position.options()), Slice(), position}, v.squeeze(2));
  std::vector<Tensor> q, k;
  for (const HktCache::Level& level : cache.levels) {
    q.push_back(level.queries);
    k.push_back(level.keys);
  }
  cache.lengths += 1;
  const Tensor weights = level_weights().to(v.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
  const Tensor mixed = hkt_decode(q, k, cache.values, weights, cache.lengths);
  return out_(mixed.reshape({B, options.model_size()}));
}

}  // namespace strata
