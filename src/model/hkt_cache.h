// The cache of a causal HKT module, so that one more token costs one row of attention.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "decoding_cache.h"
#include "strata/export.h"

namespace strata {

struct HktCacheOptions {
  TORCH_ARG(int64_t, capacity) = 0;  // tokens to allocate memory for; it is doubled where that is not enough
  TORCH_ARG(int64_t, history) = 0;   // how many of the newest tokens crop() may forget; any number with one level, and
                                     // neither an input filter nor a window
  TORCH_ARG(int64_t, window) = -1;   // a token sees itself and this many tokens before it; -1: all
};

// Rows lie in rings: row r has slot r mod the number of slots. h_l is ceil(history / 2^l).
class STRATA_API HktCache : public CacheLengths {
 public:
  // Tensors of level l. A coarse key is appended when its anchor, token m 2^l, arrives.
  struct Level {
    torch::Tensor keys;     // (B, Hk, capacity_l, d): all rows or, with a window, floor((window + history) / 2^l) + 2
    torch::Tensor queries;  // (B, H, 1 + h_l, d): the queries of the newest states
    torch::Tensor states;   // (B, taps + h_l, model): the newest states
  };

  std::vector<Level> levels;
  torch::Tensor values;  // (B, Hk, capacity, d); with a window capacity = window + 1 + history
  torch::Tensor inputs;  // (B, taps + history, model): newest inputs of the input filter; undefined without one
  int64_t window = -1;

  // Makes room for sequences of `tokens` tokens; keeps the contents. A cache with a window needs none. Call it before a
  // step is captured into a CUDA graph, for all tokens that replays will add.
  void reserve(int64_t tokens);
  // Sequence n becomes what sequence indices[n] was, as beam search needs it. There may be more or fewer indices than
  // sequences.
  void reorder(const std::vector<int64_t>& indices);
  // Forgets all but the first max_length tokens, of every sequence or of each; a negative number forgets that many.
  void crop(int64_t max_length) { set_counts(cropped(max_length)); }
  void crop(const std::vector<int64_t>& max_lengths) { set_counts(cropped(max_lengths)); }

  // The whole cache as named tensors, for save_safetensors, and back.
  CacheState state() const;
  static HktCache from_state(const CacheState& state);
};

}  // namespace strata
