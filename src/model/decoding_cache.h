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
  // After replays of a captured step, which the host does not see: `lengths` has grown by `steps` (decoding in CUDA
  // graphs, docs/CPP.md). A step that is being captured is not counted.
  void count_replays(int64_t steps);

  // The rest is for the caches and the modules.

  void begin(std::vector<int64_t> counts, int64_t history, bool unlimited, const torch::Device& device);
  // What remains of every sequence if a crop to max_length is allowed; throws if a sequence cannot go back so far. A
  // negative number forgets that many tokens.
  std::vector<int64_t> cropped(int64_t max_length) const;
  std::vector<int64_t> cropped(const std::vector<int64_t>& max_lengths) const;
  void set_counts(std::vector<int64_t> counts);  // after a crop
  void count_one();                              // after a step, unless it is being captured
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

}  // namespace strata
