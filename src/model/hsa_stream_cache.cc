#include "model/hsa_stream_cache.h"

#include "model/rings.h"
#include "strata/hsa_stream.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using torch::Tensor;
using torch::indexing::Slice;
using torch::indexing::TensorIndex;

constexpr std::array<const char*, 4> kKinds = {"keys", "values", "kappas", "masses"};
constexpr size_t kMasses = 3;

int64_t longest(const std::vector<int64_t>& counts) {
  return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
}

// Entries (sequence, slots) of nodes or logs; masses have no heads.
std::vector<TensorIndex> place(size_t kind, const Tensor& sequences, const std::vector<Tensor>& slots) {
  std::vector<TensorIndex> index;
  index.emplace_back(sequences);
  if (kind != kMasses) index.emplace_back(Slice());
  for (const Tensor& slot : slots) index.emplace_back(slot);
  return index;
}

Tensor padded_at(const Tensor& tensor, int64_t axis, int64_t more) {
  std::vector<int64_t> pad(2 * (tensor.dim() - axis), 0);
  pad.back() = more;
  return torch::constant_pad_nd(tensor, pad);
}

// Means of every b rows, (B, H, T, d), without those that are too few: the next height.
Tensor means(const Tensor& rows, int64_t b) {
  const int64_t count = rows.size(2) / b;
  return rows.narrow(2, 0, count * b).reshape({rows.size(0), rows.size(1), count, b, rows.size(3)}).mean(3);
}

}  // namespace

int64_t HsaStreamCache::log_size(int64_t height) const {
  int64_t size = history();
  for (int64_t h = 0; h < height; ++h) size = ceil_div(size, branching());
  return size;
}

HsaStreamCache HsaStreamCache::empty(const Shape& s, int64_t capacity, int64_t history,
                                     const torch::TensorOptions& options) {
  TORCH_CHECK(s.batch >= 0, "batch: expected 0 or more, got ", s.batch);
  TORCH_CHECK(capacity >= 1, "capacity: expected 1 or more heights, got ", capacity);
  HsaStreamCache cache;
  cache.near = s.near;
  cache.begin(std::vector<int64_t>(s.batch, 0), history, /*unlimited=*/false, options.device());
  const int64_t ring = s.near * s.branching;
  cache.keys = torch::zeros({s.batch, s.key_heads, capacity, ring, s.key_size}, options);
  cache.values = torch::zeros({s.batch, s.key_heads, capacity, ring, s.value_size}, options);
  cache.kappas = torch::zeros({s.batch, s.key_heads, capacity, ring}, options);
  cache.masses = torch::zeros({s.batch, capacity, ring}, options);
  if (history > 0) {
    int64_t entries = 0;
    for (int64_t height = 0; height < capacity; ++height) entries += cache.log_size(height);
    cache.log = {torch::zeros({s.batch, s.key_heads, entries, s.key_size}, options),
                 torch::zeros({s.batch, s.key_heads, entries, s.value_size}, options),
                 torch::zeros({s.batch, s.key_heads, entries}, options), torch::zeros({s.batch, entries}, options)};
  }
  return cache;
}

void HsaStreamCache::reserve(int64_t tokens) {
  const int64_t held = masses.size(1), heights = hsa_stream_heights(tokens, static_cast<int>(branching()));
  if (held >= heights) return;
  int64_t more = 0;
  for (int64_t height = held; height < heights; ++height) more += log_size(height);
  for (size_t kind = 0; kind < kKinds.size(); ++kind) {
    const int64_t axis = kind == kMasses ? 1 : 2;
    *nodes()[kind] = padded_at(*nodes()[kind], axis, heights - held);
    if (history() > 0) log[kind] = padded_at(log[kind], axis, more);
  }
}

void HsaStreamCache::fill(const Tensor& k, const Tensor& v, const Tensor& kappa, const std::vector<int64_t>& counts) {
  begin(counts, history(), /*unlimited=*/false, masses.device());
  reserve(longest(counts));
  for (Tensor* tensor : nodes()) tensor->zero_();
  for (Tensor& tensor : log) {
    if (tensor.defined()) tensor.zero_();
  }
  const int64_t b = branching(), ring = near * b;
  std::vector<Tensor> rows = {k.to(keys.scalar_type()), v.to(keys.scalar_type())};
  if (kappa.defined()) rows.push_back(kappa.to(keys.scalar_type()).unsqueeze(-1));
  int64_t offset = 0, size = 1;
  for (int64_t height = 0; size <= longest(counts); ++height, size *= b) {
    const Tensor newest = lengths.div(size, "floor") - 1;  // complete nodes
    const Tensor held = latest_rows(newest, ring);
    const int64_t entries = log_size(height);
    masses.select(1, height).copy_(held.ge(0).to(masses.scalar_type()) * static_cast<double>(size));
    for (size_t kind = 0; kind < rows.size(); ++kind) {
      Tensor to = nodes()[kind]->select(2, height);
      to.copy_(rows_or_zeros(rows[kind], held).view_as(to));
    }
    if (entries > 0) {
      const Tensor overwritten = latest_rows(newest, entries) - ring;
      log[kMasses]
          .narrow(1, offset, entries)
          .copy_(overwritten.ge(0).to(masses.scalar_type()) * static_cast<double>(size));
      for (size_t kind = 0; kind < rows.size(); ++kind) {
        Tensor to = log[kind].narrow(2, offset, entries);
        to.copy_(rows_or_zeros(rows[kind], overwritten).view_as(to));
      }
    }
    for (Tensor& all : rows) all = means(all, b);
    offset += entries;
  }
}

void HsaStreamCache::before_step() {
  reserve(longest(counts()) + 1);
  if (history() == 0) return;
  TORCH_CHECK(
      !is_captured(lengths),
      "history: expected 0 of a stream whose step is captured into a CUDA graph, because what a step overwrites "
      "is logged by the host, got ",
      history());
  std::vector<int64_t> next = counts();
  for (int64_t& count : next) ++count;
  const int64_t b = branching(), ring = near * b;
  int64_t offset = 0, size = 1;
  for (int64_t height = 0;; ++height, size *= b) {
    const Tensor sequences = multiples(next, size, masses.device());  // a node of this height is complete
    if (sequences.size(0) == 0) return;
    const Tensor node = lengths.index_select(0, sequences).div(size, "floor");
    const Tensor at = node.remainder(log_size(height)) + offset;
    const std::vector<Tensor> slot = {torch::full_like(node, height), node.remainder(ring)};
    for (size_t kind = 0; kind < kKinds.size(); ++kind)
      log[kind].index_put_(place(kind, sequences, {at}), nodes()[kind]->index(place(kind, sequences, slot)));
    offset += log_size(height);
  }
}

void HsaStreamCache::forget(const std::vector<int64_t>& targets) {
  const int64_t b = branching(), ring = near * b;
  for (size_t n = 0; n < targets.size(); ++n) {
    int64_t offset = 0, size = 1;
    for (int64_t height = 0; targets[n] / size < counts()[n] / size; ++height, size *= b) {
      const int64_t first = targets[n] / size, end = counts()[n] / size;
      // Of the nodes that shared a slot the first has overwritten what was there.
      const Tensor node = torch::arange(first, std::min(end, first + ring), lengths.options());
      const Tensor sequence = torch::full_like(node, static_cast<int64_t>(n));
      const Tensor at = node.remainder(log_size(height)) + offset;
      const std::vector<Tensor> slot = {torch::full_like(node, height), node.remainder(ring)};
      for (size_t kind = 0; kind < kKinds.size(); ++kind)
        nodes()[kind]->index_put_(place(kind, sequence, slot), log[kind].index(place(kind, sequence, {at})));
      offset += log_size(height);
    }
  }
  set_counts(targets);
}

Tensor HsaStreamCache::reorder(const std::vector<int64_t>& indices) {
  const Tensor chosen = reorder_lengths(indices);
  for (Tensor* tensor : nodes()) *tensor = tensor->index_select(0, chosen);
  for (Tensor& tensor : log) {
    if (tensor.defined()) tensor = tensor.index_select(0, chosen);
  }
  return chosen;
}

CacheState HsaStreamCache::state() const {
  CacheState named = {{"keys", keys}, {"values", values}, {"kappas", kappas}, {"masses", masses}};
  add_state(named);
  if (near != 1) named.emplace_back("near", torch::tensor({near}));
  for (size_t kind = 0; kind < kKinds.size() && history() > 0; ++kind)
    named.emplace_back(std::string("log.") + kKinds[kind], log[kind]);
  return named;
}

HsaStreamCache HsaStreamCache::from_state(const CacheState& state) {
  const char* kName = "HsaStreamCache";
  HsaStreamCache cache;
  for (size_t kind = 0; kind < kKinds.size(); ++kind) *cache.nodes()[kind] = take_tensor(state, kKinds[kind], kName);
  cache.take_state(state, kName);
  for (size_t kind = 0; kind < kKinds.size() && cache.history() > 0; ++kind)
    cache.log[kind] = take_tensor(state, std::string("log.") + kKinds[kind], kName);
  if (has_tensor(state, "near")) {
    const Tensor near = take_tensor(state, "near", kName);
    TORCH_CHECK(near.numel() == 1 && near.scalar_type() == torch::kLong, "HsaStreamCache: near: expected one int64");
    cache.near = near.item<int64_t>();
  }
  TORCH_CHECK(
      cache.masses.dim() == 3 && cache.near >= 1 && cache.masses.size(2) % cache.near == 0 && cache.branching() >= 2,
      "HsaStreamCache: masses: expected shape (batch, heights, near b) with near = ", cache.near,
      " and b of 2 or more, got ", cache.masses.sizes());
  return cache;
}

}  // namespace strata
