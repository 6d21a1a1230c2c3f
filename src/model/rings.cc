#include "model/rings.h"

#include "torch/hkt_op.h"

namespace strata {

using torch::Tensor;

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
