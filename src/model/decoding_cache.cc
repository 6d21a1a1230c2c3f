#include "model/decoding_cache.h"

#include "model/rings.h"
#include "torch/run_on_device.h"

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
  if (!is_captured(lengths)) count_replays(1);
}

void CacheLengths::count_replays(int64_t steps) {
  TORCH_CHECK(steps >= 0, "steps: expected 0 or more, got ", steps);
  for (size_t n = 0; n < counts_.size(); ++n) {
    counts_[n] += steps;
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

}  // namespace strata
