// The cache of a causal HKT module, so that one more token costs one row of attention.
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "strata/export.h"

namespace strata {

class STRATA_API HktCache {
 public:
  // Tensors of level l. A coarse key is appended when its anchor, token m 2^l, arrives.
  struct Level {
    torch::Tensor keys;     // (B, Hk, capacity_l, d), the first ceil(length / 2^l) of them filled
    torch::Tensor queries;  // (B, H, 1, d): the query of the newest state
    torch::Tensor recent;   // (B, taps, model): the newest states, oldest first, zeros before the sequence began
  };

  std::vector<Level> levels;
  torch::Tensor values;         // (B, Hk, capacity, d)
  torch::Tensor recent_inputs;  // (B, taps, model) before the input filter; undefined without one
  torch::Tensor lengths;        // (B) int64: tokens seen by each sequence

  // Makes room for sequences of `tokens` tokens; keeps the contents.
  void reserve(int64_t tokens);

  // The whole cache as named tensors, for save_safetensors, and back.
  std::vector<std::pair<std::string, torch::Tensor>> state() const;
  static HktCache from_state(const std::vector<std::pair<std::string, torch::Tensor>>& state);
};

}  // namespace strata
