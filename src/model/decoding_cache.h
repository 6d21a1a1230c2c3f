// What the decoding caches share: the lengths of the sequences, which the host knows too, so that a step on a GPU waits
// for nothing, and how many tokens a crop may forget.
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "strata/export.h"

namespace strata {

using CacheState = std::vector<std::pair<std::string, torch::Tensor>>;  // for save_safetensors

class STRATA_API CacheLengths {
 public:
  torch::Tensor lengths;  // (B) int64: tokens of each sequence

  const std::vector<int64_t>& counts() const { return counts_; }  // `lengths`, on the host
  int64_t history() const { return history_; }                    // how many of the newest tokens a crop may forget

  void begin(std::vector<int64_t> counts, int64_t history, bool unlimited, const torch::Device& device);
  // What remains of every sequence if a crop to max_length is allowed; throws if a sequence cannot go back so far. A
  // negative number forgets that many tokens.
  std::vector<int64_t> cropped(int64_t max_length) const;
  std::vector<int64_t> cropped(const std::vector<int64_t>& max_lengths) const;
  void set_counts(std::vector<int64_t> counts);  // after a crop
  void count_one();                              // after a step; `lengths` is counted by the caller
  // Sequence n becomes sequence indices[n]; returns the indices on the device, for index_select.
  torch::Tensor reorder_lengths(const std::vector<int64_t>& indices);

  void add_state(CacheState& state) const;  // lengths, floors, history, and back
  void take_state(const CacheState& state, const char* cache);

 private:
  std::vector<int64_t> counts_;
  std::vector<int64_t> floors_;  // the shortest lengths that a crop reaches
  int64_t history_ = 0;
  bool unlimited_ = false;
};

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
