// Decoding with Strata attention: prefill() and step() of the module, and the cache between them.
#include <map>

#include "model/strata_attention.h"
#include "strata/hsa_stream.h"
#include "torch/hsa_op.h"

namespace strata {
namespace {

using torch::Tensor;

}  // namespace

std::vector<std::pair<std::string, Tensor>> StrataCache::state() const {
  std::vector<std::pair<std::string, Tensor>> named = nodes.state();
  named.emplace_back("near", torch::tensor({near}));
  if (recent_inputs.defined()) named.emplace_back("recent_inputs", recent_inputs);
  for (size_t l = 0; l < levels.size(); ++l) {
    const std::string prefix = "level_" + std::to_string(l) + ".";
    named.emplace_back(prefix + "query", levels[l].query);
    named.emplace_back(prefix + "key", levels[l].key);
    named.emplace_back(prefix + "recent", levels[l].recent);
  }
  return named;
}

StrataCache StrataCache::from_state(const std::vector<std::pair<std::string, Tensor>>& state) {
  const std::map<std::string, Tensor> named(state.begin(), state.end());
  auto take = [&](const std::string& name) {
    const auto found = named.find(name);
    TORCH_CHECK(found != named.end(), "StrataCache: expected a tensor named \"", name,
                "\", found none; was this state written by StrataCache::state()?");
    return found->second.clone();
  };
  StrataCache cache;
  cache.nodes = HsaStreamCache::from_state(state);
  const Tensor near = take("near");
  TORCH_CHECK(near.numel() == 1 && near.scalar_type() == torch::kLong, "StrataCache: near: expected one int64");
  cache.near = near.item<int64_t>();
  if (named.count("recent_inputs") > 0) cache.recent_inputs = take("recent_inputs");
  for (int l = 0; named.count("level_" + std::to_string(l) + ".key") > 0; ++l) {
    const std::string prefix = "level_" + std::to_string(l) + ".";
    cache.levels.push_back({take(prefix + "query"), take(prefix + "key"), take(prefix + "recent")});
  }
  return cache;
}

StrataCache StrataAttentionImpl::start_stream(int64_t batch, int64_t capacity) {
  return prefill(torch::zeros({batch, 0, options.model_size()}, value_->weight.options().requires_grad(false)),
                 c10::nullopt, capacity)
      .second;
}

// The newest `near` families of each height, of every sequence: means of b nodes of the height below.
void StrataAttentionImpl::fill_nodes(HsaStreamCache& nodes, const Projected& p, const Tensor& lengths) const {
  const int64_t b = strata_options.branching(), n = strata_options.near(), ring = n * b;
  for (int64_t s = 0; s < lengths.size(0); ++s) {
    const int64_t T = lengths[s].item<int64_t>();
    if (T == 0) continue;
    const Tensor token = torch::arange(T, lengths.options());
    std::vector<Tensor> rows;
    for (int64_t l = 0; l < options.levels(); ++l)
      rows.push_back(p.k[l][s].index_select(1, token.div(int64_t{1} << l, "floor")));
    Tensor k = torch::cat(rows, 2), v = p.v[s].narrow(1, 0, T);  // (Hk, T, levels d), (Hk, T, d)
    double mass = 1;
    for (int64_t height = 0; k.size(1) > 0; ++height, mass *= static_cast<double>(b)) {
      const int64_t count = k.size(1), first = std::max<int64_t>(0, (count + b - 1) / b - n) * b;
      const Tensor slots = torch::arange(first, count, lengths.options()).remainder(ring);
      nodes.keys[s].select(1, height).index_copy_(1, slots, k.narrow(1, first, count - first));
      nodes.values[s].select(1, height).index_copy_(1, slots, v.narrow(1, first, count - first));
      nodes.masses[s][height].index_fill_(0, slots, mass);
      auto means = [&](const Tensor& t) {
        return t.narrow(1, 0, count / b * b).reshape({t.size(0), count / b, b, t.size(2)}).mean(2);
      };
      k = means(k);
      v = means(v);
    }
  }
}

std::pair<Tensor, StrataCache> StrataAttentionImpl::prefill(const Tensor& x, const c10::optional<Tensor>& lengths,
                                                            int64_t capacity) {
  check_streaming("prefill");
  torch::NoGradGuard no_grad;
  const int64_t B = x.size(0), T = x.size(1), H = key_heads(), d = head_size(), b = strata_options.branching();
  const int64_t ring = strata_options.near() * b;
  TORCH_CHECK(capacity >= hsa_stream_heights(T, static_cast<int>(b)), "capacity: expected ",
              hsa_stream_heights(T, static_cast<int>(b)), " heights or more for ", T, " tokens, got ", capacity);
  const Tensor counts =
      lengths.has_value() ? lengths->to(torch::kLong).clone() : torch::full({B}, T, x.options().dtype(torch::kLong));
  TORCH_CHECK(counts.dim() == 1 && counts.size(0) == B, "lengths: expected shape (", B, "), got ", counts.sizes());
  TORCH_CHECK(B == 0 || (counts.min().item<int64_t>() >= 0 && counts.max().item<int64_t>() <= T),
              "lengths: expected 0 to ", T, ", got ", counts);
  const Tensor padding = torch::arange(T, counts.options()) >= counts.unsqueeze(1);
  const Tensor real = x.masked_fill(padding.unsqueeze(-1), 0.0);
  StrataCache cache;
  cache.near = strata_options.near();
  const auto like = x.options();
  cache.nodes = {torch::zeros({B, H, capacity, ring, options.levels() * d}, like),
                 torch::zeros({B, H, capacity, ring, d}, like), torch::zeros({B, H, capacity, ring}, like),
                 torch::zeros({B, capacity, ring}, like), counts};
  const std::vector<Tensor> recent = recent_states(real, counts, cache.recent_inputs);
  const Projected p = project_all(T > 0 ? real : torch::zeros({B, 1, x.size(2)}, like));
  for (int64_t l = 0; l < options.levels(); ++l) {
    const Tensor last = (counts + ((int64_t{1} << l) - 1)).div(int64_t{1} << l, "floor").sub(1).clamp_min(0);
    auto newest = [&](const Tensor& rows) {
      return rows.gather(2, last.view({B, 1, 1, 1}).expand({-1, rows.size(1), 1, d})).contiguous();
    };
    cache.levels.push_back({newest(p.q[l]), newest(p.k[l]), recent[l]});
  }
  fill_nodes(cache.nodes, p, counts);
  return {T > 0 ? forward(real) : x, std::move(cache)};
}

Tensor StrataAttentionImpl::step(const Tensor& x, StrataCache& cache) {
  check_streaming("step");
  TORCH_CHECK(static_cast<int64_t>(cache.levels.size()) == options.levels() && cache.near == strata_options.near() &&
                  cache.nodes.keys.dim() == 5 &&
                  cache.nodes.keys.size(3) == strata_options.near() * strata_options.branching(),
              "cache: expected ", options.levels(), " levels, near = ", strata_options.near(),
              " and branching = ", strata_options.branching(), ", as in the module, got ", cache.levels.size(),
              " levels, near = ", cache.near, " and ",
              cache.nodes.keys.dim() == 5 ? cache.nodes.keys.size(3) : int64_t{0}, " slots of a height");
  TORCH_CHECK(x.dim() == 2 && x.size(0) == cache.nodes.lengths.size(0) && x.size(1) == options.model_size(),
              "x: expected shape (", cache.nodes.lengths.size(0), ", ", options.model_size(), "), got ", x.sizes());
  torch::NoGradGuard no_grad;
  if (x.size(0) == 0) return x;
  const Tensor v = advance(
      x, cache.nodes.lengths, cache.recent_inputs, [&](int64_t l) -> Tensor& { return cache.levels[l].recent; },
      [&](int64_t l, const Tensor& sequences, const Tensor&, const Tensor& q, const Tensor& k) {
        cache.levels[l].query.index_copy_(0, sequences, q);
        cache.levels[l].key.index_copy_(0, sequences, k);
      });
  std::vector<Tensor> q, k;
  for (const StrataCache::Level& level : cache.levels) {
    q.push_back(level.query.squeeze(2));
    k.push_back(level.key.squeeze(2));
  }
  HsaStreamOptions o;
  o.near = strata_options.near();
  o.level_weights = level_weights();
  if (sibling_bias_.defined()) o.positions = sibling_bias_;
  HsaStreamState state{cache.nodes.keys, cache.nodes.values, cache.nodes.kappas, cache.nodes.masses,
                       cache.nodes.lengths};
  return out_(hsa_stream_step(torch::cat(q, 2), torch::cat(k, 2), v.squeeze(2), state, o).reshape(x.sizes()));
}

}  // namespace strata
