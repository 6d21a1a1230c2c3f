#include "model/decoding_cache.h"

#include "torch/hkt_op.h"

namespace strata {

using torch::Tensor;

void CacheLengths::begin(std::vector<int64_t> counts, int64_t history, bool unlimited, const torch::Device& device) {
  TORCH_CHECK(history >= 0, "history: expected 0 or more tokens that crop() may forget, got ", history);
  counts_ = std::move(counts);
  history_ = history;
  unlimited_ = unlimited;
  floors_.clear();
  for (const int64_t count : counts_) floors_.push_back(unlimited ? 0 : std::max<int64_t>(0, count - history));
  lengths = torch::tensor(counts_, torch::kLong).to(device);
}

std::vector<int64_t> CacheLengths::cropped(int64_t max_length) const {
  return cropped(std::vector<int64_t>(counts_.size(), max_length));
}

std::vector<int64_t> CacheLengths::cropped(const std::vector<int64_t>& max_lengths) const {
  TORCH_CHECK(max_lengths.size() == counts_.size(), "max_length: expected ", counts_.size(),
              " numbers, one per sequence, got ", max_lengths.size());
  std::vector<int64_t> targets;
  for (size_t n = 0; n < counts_.size(); ++n) {
    const int64_t count = counts_[n], want = max_lengths[n];
    targets.push_back(want >= 0 ? std::min(count, want) : std::max<int64_t>(0, count + want));
    TORCH_CHECK(targets[n] >= floors_[n] || targets[n] == count, "max_length: sequence ", n, " has ", count,
                " tokens and can be cropped to ", floors_[n],
                " or more, because the cache was made with history = ", history_, ", got ", targets[n],
                "; make it with a longer history");
  }
  return targets;
}

void CacheLengths::set_counts(std::vector<int64_t> counts) {
  counts_ = std::move(counts);
  lengths.copy_(torch::tensor(counts_, torch::kLong));
}

void CacheLengths::count_one() {
  for (size_t n = 0; n < counts_.size(); ++n) {
    ++counts_[n];
    if (!unlimited_) floors_[n] = std::max(floors_[n], counts_[n] - history_);
  }
}

Tensor CacheLengths::reorder_lengths(const std::vector<int64_t>& indices) {
  std::vector<int64_t> counts, floors;
  const auto batch = static_cast<int64_t>(counts_.size());
  for (const int64_t n : indices) {
    TORCH_CHECK(n >= 0 && n < batch, "indices: expected numbers from 0 to ", batch - 1, ", got ", n);
    counts.push_back(counts_[n]);
    floors.push_back(floors_[n]);
  }
  counts_ = std::move(counts);
  floors_ = std::move(floors);
  const Tensor chosen = torch::tensor(indices, torch::kLong).to(lengths.device());
  lengths = lengths.index_select(0, chosen);
  return chosen;
}

void CacheLengths::add_state(CacheState& state) const {
  state.emplace_back("lengths", lengths);
  state.emplace_back("floors", torch::tensor(floors_, torch::kLong));
  state.emplace_back("history", torch::tensor({history_}));
}

void CacheLengths::take_state(const CacheState& state, const char* cache) {
  lengths = take_tensor(state, "lengths", cache);
  const Tensor counts = lengths.cpu().contiguous(), history = take_tensor(state, "history", cache);
  const Tensor floors = take_tensor(state, "floors", cache).cpu().contiguous();
  TORCH_CHECK(counts.dim() == 1 && counts.scalar_type() == torch::kLong && floors.sizes() == counts.sizes() &&
                  floors.scalar_type() == torch::kLong && history.numel() == 1 && history.scalar_type() == torch::kLong,
              cache, ": lengths, floors, history: expected int64 of shape (B), (B) and (1)");
  counts_.assign(counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + counts.numel());
  floors_.assign(floors.data_ptr<int64_t>(), floors.data_ptr<int64_t>() + floors.numel());
  history_ = history.item<int64_t>();
  unlimited_ = false;
}

bool has_tensor(const CacheState& state, const std::string& name) {
  for (const auto& item : state) {
    if (item.first == name) return true;
  }
  return false;
}

Tensor take_tensor(const CacheState& state, const std::string& name, const char* cache) {
  for (const auto& item : state) {
    if (item.first == name) return item.second.clone();
  }
  TORCH_CHECK(false, cache, ": expected a tensor named \"", name, "\", found none; was this state written by ", cache,
              "::state()?");
}

std::vector<int64_t> prompt_lengths(const Tensor& x, const c10::optional<Tensor>& lengths) {
  const int64_t B = x.size(0), T = x.size(1);
  if (!lengths.has_value()) return std::vector<int64_t>(B, T);
  TORCH_CHECK(lengths->dim() == 1 && lengths->size(0) == B, "lengths: expected shape (", B, "), got ",
              lengths->sizes());
  const Tensor host = lengths->to(torch::kCPU, torch::kLong).contiguous();
  std::vector<int64_t> counts(host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + B);
  for (const int64_t count : counts) {
    TORCH_CHECK(count >= 0 && count <= T, "lengths: expected 0 to ", T, ", got ", count);
  }
  return counts;
}

Tensor without_padding(const Tensor& x, const Tensor& lengths) {
  const Tensor padding = torch::arange(x.size(1), lengths.options()) >= lengths.unsqueeze(1);
  return x.masked_fill(padding.unsqueeze(-1), 0.0);
}

Tensor multiples(const std::vector<int64_t>& counts, int64_t divisor, const torch::Device& device) {
  std::vector<int64_t> chosen;
  for (size_t n = 0; n < counts.size(); ++n) {
    if (counts[n] % divisor == 0) chosen.push_back(static_cast<int64_t>(n));
  }
  if (chosen.size() == counts.size())
    return torch::arange(static_cast<int64_t>(counts.size()), torch::TensorOptions(device).dtype(torch::kLong));
  if (!device.is_cuda()) return torch::tensor(chosen, torch::kLong);
  // From pinned memory, so that the host does not wait.
  const auto pinned = torch::TensorOptions(torch::kLong).pinned_memory(true);
  return torch::tensor(chosen, pinned).to(device, torch::kLong, /*non_blocking=*/true);
}

Tensor latest_rows(const Tensor& newest, int64_t size) {
  const Tensor last = newest.unsqueeze(1);
  return last - (last - torch::arange(size, newest.options())).remainder(size);
}

Tensor rows_or_zeros(const Tensor& rows, const Tensor& held) {
  const Tensor at = held.unsqueeze(1).unsqueeze(-1);  // (B, 1, n, 1)
  const Tensor index = at.clamp(0, std::max<int64_t>(0, rows.size(2) - 1)).expand({-1, rows.size(1), -1, rows.size(3)});
  return rows.gather(2, index).masked_fill(at.lt(0), 0.0);
}

Tensor ring_of(const Tensor& rows, const Tensor& newest, int64_t size) {
  return rows_or_zeros(rows, latest_rows(newest, size));
}

Tensor newest_of(const Tensor& ring, const Tensor& newest) {
  const Tensor slot = newest.remainder(ring.size(2)).view({-1, 1, 1, 1});
  return ring.gather(2, slot.expand({-1, ring.size(1), 1, ring.size(3)}));
}

Tensor filter_newest(const Tensor& ring, const Tensor& newest, const Tensor& filter) {
  const Tensor rows = newest.unsqueeze(1) + torch::arange(1 - filter.size(0), 1, newest.options());  // (B, taps)
  const Tensor index = rows.remainder(ring.size(1)).unsqueeze(-1).expand({-1, -1, ring.size(2)});
  const Tensor states = ring.gather(1, index).masked_fill(rows.lt(0).unsqueeze(-1), 0.0);
  return causal_filter(states, filter, 1).select(1, filter.size(0) - 1);
}

}  // namespace strata
