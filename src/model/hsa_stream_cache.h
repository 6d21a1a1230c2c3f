// The cache of the streaming forms: at every height a ring of the newest nodes, for a stream of any length.
#pragma once

#include <torch/torch.h>

#include <array>
#include <vector>

#include "decoding_cache.h"
#include "strata/export.h"

namespace strata {

// Node m of a height has slot m mod n b, n = near (1 of HSA). A node forgets its children, so crop() needs a log of
// what the newest `history` tokens have overwritten: at height h the overwritten nodes of the last ceil(history / b^h)
// writes, in a ring of that size; the rings of the heights follow each other.
class STRATA_API HsaStreamCache : public CacheLengths {
 public:
  struct Shape {
    int64_t batch, key_heads, branching, near, key_size, value_size;
  };

  torch::Tensor keys, values;        // (B, Hk, capacity, n b, key size), (.., value size)
  torch::Tensor kappas;              // (B, Hk, capacity, n b)
  torch::Tensor masses;              // (B, capacity, n b)
  std::array<torch::Tensor, 4> log;  // of keys, values, kappas, masses: (B, Hk, entries, ..); undefined without
  int64_t near = 1;

  // An empty cache for fewer than b^capacity tokens; more add heights.
  static HsaStreamCache empty(const Shape& shape, int64_t capacity, int64_t history,
                              const torch::TensorOptions& options);
  // Replaces the contents by what the first `counts` tokens of k and v, (B, Hk, T, size), and of kappa, (B, Hk, T),
  // which may be undefined, leave behind. What lies beyond them must be finite.
  void fill(const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& kappa,
            const std::vector<int64_t>& counts);

  int64_t branching() const { return masses.size(2) / near; }
  // Makes room for sequences of `tokens` tokens; keeps the contents.
  void reserve(int64_t tokens);
  // Room for the next token of every sequence, and a log of what it overwrites: to be called before a step.
  void before_step();
  // Sequence n becomes what sequence indices[n] was; returns the indices on the device.
  torch::Tensor reorder(const std::vector<int64_t>& indices);
  // Forgets all but the first max_length tokens, of every sequence or of each; a negative number forgets that many. At
  // most the newest `history` tokens can be forgotten.
  void crop(int64_t max_length) { forget(cropped(max_length)); }
  void crop(const std::vector<int64_t>& max_lengths) { forget(cropped(max_lengths)); }

  CacheState state() const;  // for save_safetensors, and back
  static HsaStreamCache from_state(const CacheState& state);

 private:
  std::array<torch::Tensor*, 4> nodes() { return {&keys, &values, &kappas, &masses}; }
  int64_t log_size(int64_t height) const;
  void forget(const std::vector<int64_t>& targets);
};

}  // namespace strata
