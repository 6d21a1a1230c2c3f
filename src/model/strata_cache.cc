// Decoding with Strata attention: prefill() and step() of the module, and the cache between them.
#include "model/rings.h"
#include "model/strata_attention.h"
#include "strata/hsa_stream.h"
#include "torch/hkt_op.h"
#include "torch/hsa_op.h"

namespace strata {

using torch::Tensor;
using torch::indexing::Slice;

void StrataCache::reorder(const std::vector<int64_t>& indices) {
  const Tensor chosen = nodes.reorder(indices);
  if (inputs.defined()) inputs = inputs.index_select(0, chosen);
  for (Level& level : levels) {
    level = {level.query_rows.index_select(0, chosen), level.key_rows.index_select(0, chosen),
             level.states.index_select(0, chosen)};
  }
}

CacheState StrataCache::state() const {
  CacheState named = nodes.state();
  if (!has_tensor(named, "near")) named.emplace_back("near", torch::tensor({nodes.near}));
  if (inputs.defined()) named.emplace_back("inputs", inputs);
  for (size_t l = 0; l < levels.size(); ++l) {
    const std::string prefix = "level_" + std::to_string(l) + ".";
    named.emplace_back(prefix + "query_rows", levels[l].query_rows);
    named.emplace_back(prefix + "key_rows", levels[l].key_rows);
    named.emplace_back(prefix + "states", levels[l].states);
  }
  return named;
}

StrataCache StrataCache::from_state(const CacheState& state) {
  const char* kName = "StrataCache";
  StrataCache cache;
  cache.nodes = HsaStreamCache::from_state(state);
  if (has_tensor(state, "inputs")) cache.inputs = take_tensor(state, "inputs", kName);
  for (int l = 0; has_tensor(state, "level_" + std::to_string(l) + ".key_rows"); ++l) {
    const std::string prefix = "level_" + std::to_string(l) + ".";
    cache.levels.push_back({take_tensor(state, prefix + "query_rows", kName),
                            take_tensor(state, prefix + "key_rows", kName),
                            take_tensor(state, prefix + "states", kName)});
  }
  return cache;
}

StrataCache StrataAttentionImpl::start_stream(int64_t batch, int64_t capacity, int64_t history) {
  return prefill(torch::zeros({batch, 0, options.model_size()}, value_->weight.options().requires_grad(false)),
                 c10::nullopt, capacity, history)
      .second;
}

std::pair<Tensor, StrataCache> StrataAttentionImpl::prefill(const Tensor& x, const c10::optional<Tensor>& lengths,
                                                            int64_t capacity, int64_t history) {
  check_streaming("prefill");
  torch::NoGradGuard no_grad;
  const int64_t B = x.size(0), T = x.size(1), d = head_size();
  const std::vector<int64_t> counts = prompt_lengths(x, lengths);
  StrataCache cache;
  cache.nodes = HsaStreamCache::empty(
      {B, key_heads(), strata_options.branching(), strata_options.near(), options.levels() * d, d}, capacity, history,
      x.options());
  const Tensor real = without_padding(x, torch::tensor(counts, torch::kLong).to(x.device()));
  // An empty prompt has no rows to gather from; use one of zeros instead.
  const Tensor rows = T > 0 ? real : torch::zeros({B, 1, x.size(2)}, x.options());
  const Projected p = project_all(rows);
  const Tensor token = torch::arange(rows.size(1), x.options().dtype(torch::kLong));
  std::vector<Tensor> keys;
  for (int64_t l = 0; l < options.levels(); ++l)
    keys.push_back(p.k[l].index_select(2, token.div(int64_t{1} << l, "floor")));
  cache.nodes.fill(torch::cat(keys, 3), p.v, {}, counts);
  const Tensor& length = cache.nodes.lengths;
  const std::vector<Tensor> states = newest_states(rows, length, history, cache.inputs);
  for (int64_t l = 0; l < options.levels(); ++l) {
    const Tensor newest = (length - 1).div(int64_t{1} << l, "floor");
    const int64_t size = 1 + ceil_div(history, int64_t{1} << l);
    cache.levels.push_back({ring_of(p.q[l], newest, size), ring_of(p.k[l], newest, size), states[l]});
  }
  return {T > 0 ? forward(real) : x, std::move(cache)};
}

StrataAttentionImpl::NewestRows StrataAttentionImpl::newest_rows(const Tensor& x, StrataCache& cache) {
  const Tensor& lengths = cache.nodes.lengths;
  if (has_same_launches(x)) {
    std::vector<Tensor> queries, keys, states;
    for (const StrataCache::Level& level : cache.levels) {
      queries.push_back(level.query_rows);
      keys.push_back(level.key_rows);
      states.push_back(level.states);
    }
    const Projected rows = project_newest(x, lengths, cache.inputs, states);
    const auto [q, k] = hkt_append(rows.q, rows.k, {}, queries, keys, {}, lengths, /*current=*/true);
    return {q.flatten(2), k.flatten(2), rows.v.squeeze(2)};
  }
  const Tensor v = advance(
      x, cache.nodes, cache.inputs, [&](int64_t l) -> Tensor& { return cache.levels[l].states; },
      [&](int64_t l, const Tensor& sequences, const Tensor& row, const Tensor& q, const Tensor& k) {
        StrataCache::Level& level = cache.levels[l];
        const Tensor slot = row.remainder(level.key_rows.size(2));
        level.query_rows.index_put_({sequences, Slice(), slot}, q.squeeze(2));
        level.key_rows.index_put_({sequences, Slice(), slot}, k.squeeze(2));
      });
  std::vector<Tensor> q, k;
  for (size_t l = 0; l < cache.levels.size(); ++l) {
    const Tensor row = lengths.div(int64_t{1} << l, "floor");
    q.push_back(newest_of(cache.levels[l].query_rows, row).squeeze(2));
    k.push_back(newest_of(cache.levels[l].key_rows, row).squeeze(2));
  }
  return {torch::cat(q, 2), torch::cat(k, 2), v.squeeze(2)};
}

Tensor StrataAttentionImpl::step(const Tensor& x, StrataCache& cache) {
  check_streaming("step");
  HsaStreamCache& nodes = cache.nodes;
  TORCH_CHECK(static_cast<int64_t>(cache.levels.size()) == options.levels() && nodes.near == strata_options.near() &&
                  nodes.keys.dim() == 5 && nodes.keys.size(3) == strata_options.near() * strata_options.branching(),
              "cache: expected ", options.levels(), " levels, near = ", strata_options.near(),
              " and branching = ", strata_options.branching(), ", as in the module, got ", cache.levels.size(),
              " levels, near = ", nodes.near, " and ", nodes.keys.dim() == 5 ? nodes.keys.size(3) : int64_t{0},
              " slots of a height");
  TORCH_CHECK(x.dim() == 2 && x.size(0) == nodes.lengths.size(0) && x.size(1) == options.model_size(),
              "x: expected shape (", nodes.lengths.size(0), ", ", options.model_size(), "), got ", x.sizes());
  torch::NoGradGuard no_grad;
  if (x.size(0) == 0) return x;
  nodes.before_step();
  const NewestRows rows = newest_rows(x, cache);
  HsaStreamOptions o;
  o.near = strata_options.near();
  o.level_weights = level_weights();
  if (sibling_bias_.defined()) o.positions = sibling_bias_;
  HsaStreamState state{nodes.keys, nodes.values, nodes.kappas, nodes.masses, nodes.lengths};
  const Tensor mixed = hsa_stream_step(rows.q, rows.k, rows.v, state, o);
  nodes.count_one();
  return out_(mixed.reshape(x.sizes()));
}

}  // namespace strata
