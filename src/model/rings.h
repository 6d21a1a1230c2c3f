// Helpers of the decoding caches: rows in rings, tensors by name, lengths of prompts.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "decoding_cache.h"

namespace strata {

// A copy of the tensor of that name; throws if there is none.
torch::Tensor take_tensor(const CacheState& state, const std::string& name, const char* cache);
bool has_tensor(const CacheState& state, const std::string& name);
// The lengths of prompts x (B, T, ..), checked, on the host; all of T without lengths.
std::vector<int64_t> prompt_lengths(const torch::Tensor& x, const c10::optional<torch::Tensor>& lengths);
// x with zeros behind the first `lengths` (B) tokens.
torch::Tensor without_padding(const torch::Tensor& x, const torch::Tensor& lengths);
// Those n, (k) int64, for which counts[n] is a multiple of `divisor`.
torch::Tensor multiples(const std::vector<int64_t>& counts, int64_t divisor, const torch::Device& device);

inline int64_t ceil_div(int64_t number, int64_t divisor) { return (number + divisor - 1) / divisor; }

// ------------------------------------------------------------------------------------------------- rings

// (B, size): the row that each slot of a ring holds if row r has slot r mod size and the newest row is `newest` (B);
// negative where none came yet.
torch::Tensor latest_rows(const torch::Tensor& newest, int64_t size);
// Rows `held` (B, n) of rows (B, H, T, d); zeros where `held` is negative.
torch::Tensor rows_or_zeros(const torch::Tensor& rows, const torch::Tensor& held);
// The ring (B, H, size, d) after the rows 0 .. newest (B) of (B, H, T, d).
torch::Tensor ring_of(const torch::Tensor& rows, const torch::Tensor& newest, int64_t size);
// Row `newest` (B) of a ring (B, H, size, d): (B, H, 1, d).
torch::Tensor newest_of(const torch::Tensor& ring, const torch::Tensor& newest);
// What a filter gives at row `newest` (B) of states in a ring (B, size, C): (B, C). Rows before 0 are zeros.
torch::Tensor filter_newest(const torch::Tensor& ring, const torch::Tensor& newest, const torch::Tensor& filter);

}  // namespace strata
