// Strata attention as a module: HKT's levels on HSA's trees (docs/MATH.md, section 3).
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "hkt_attention.h"
#include "hsa_attention.h"

namespace strata {

enum class StrataForm {
  kTree,       // any tree, for encoders: the attention closest to HKT's on it. It looks ahead inside a node.
  kStreaming,  // strictly causal, for language models, with a cache that grows with the logarithm of the text
  kBothSides   // for encoders without a tree
};

struct StrataAttentionOptions {
  StrataAttentionOptions(int64_t model_size, int64_t heads) : pyramid_(model_size, heads) {}

  TORCH_ARG(HktAttentionOptions, pyramid);  // heads, key heads, levels, filters, rotary positions; causal() is not read
  TORCH_ARG(StrataForm, form) = StrataForm::kTree;
  TORCH_ARG(int64_t, branching) = 16;          // not of the tree form
  TORCH_ARG(int64_t, near) = 2;                // likewise: families of each height that a token sees
  TORCH_ARG(std::string, positions) = "none";  // "none" or "bias", a learned table of terms between nodes
  TORCH_ARG(int64_t, tables) = 1;   // tree form: position tables, as in HsaAttentionOptions; otherwise heights
  TORCH_ARG(int64_t, places) = 16;  // tree form: children that a family with positions may have
};

// What the streaming form remembers: O(near b log T) nodes, and of each level the newest rows. h_l is
// ceil(history / 2^l); row r of a level has slot r mod the number of slots.
class STRATA_API StrataCache {
 public:
  struct Level {
    torch::Tensor query_rows, key_rows;  // (B, H, 1 + h_l, d), (B, Hk, 1 + h_l, d): of the newest rows
    torch::Tensor states;                // (B, taps + h_l, model): the newest states
  };
  HsaStreamCache nodes;
  std::vector<Level> levels;
  torch::Tensor inputs;  // (B, taps + history, model): newest inputs of the input filter; undefined without one

  // As in HsaStreamCache.
  void reorder(const std::vector<int64_t>& indices);
  void crop(int64_t max_length) { nodes.crop(max_length); }
  void crop(const std::vector<int64_t>& max_lengths) { nodes.crop(max_lengths); }

  CacheState state() const;  // for save_safetensors, and back
  static StrataCache from_state(const CacheState& state);
};

// Parameters: those of HktAttention, and sibling_bias with "bias": (H, tables, places, places) of the tree form,
// (H, tables, distances, branching, branching) of the others.
class STRATA_API StrataAttentionImpl : public HktAttentionImpl {
 public:
  explicit StrataAttentionImpl(const StrataAttentionOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(const c10::optional<torch::Device>& device = c10::nullopt) const override;

  // x: (B, T, model); trees: of the tree form, as in HsaAttention. weights: (B, T), 0 is padding. cu_seqlens: packed
  // sequences of the other forms (torch/hkt_op.h), x is (1, rows of all, model). Returns (B, T, model).
  torch::Tensor forward(const torch::Tensor& x, const std::vector<torch::Tensor>& trees = {},
                        const c10::optional<torch::Tensor>& weights = c10::nullopt,
                        const c10::optional<torch::Tensor>& cu_seqlens = c10::nullopt, int64_t max_seqlen = 0);

  // The streaming form only. An empty cache, of `capacity` heights for fewer than b^capacity tokens; a longer stream
  // adds some. Its crop() may forget the newest `history` tokens.
  StrataCache start_stream(int64_t batch, int64_t capacity = 10, int64_t history = 0);
  // Runs the prompts x (B, T, model) through forward() and fills a cache from which step() goes on.
  std::pair<torch::Tensor, StrataCache> prefill(const torch::Tensor& x,
                                                const c10::optional<torch::Tensor>& lengths = c10::nullopt,
                                                int64_t capacity = 10, int64_t history = 0);
  // One new token per sequence, x: (B, model). Equals the parallel form, to rounding. No gradients.
  torch::Tensor step(const torch::Tensor& x, StrataCache& cache);

  StrataAttentionOptions strata_options;  // must not change after construction

 private:
  Projected project_sequences(const torch::Tensor& x, const std::vector<torch::Tensor>& trees);
  void check_streaming(const char* what) const;
  // The rows of all levels that a new token x (B, model) has, in their rings and side by side: (B, H, levels d),
  // (B, Hk, levels d), and v (B, Hk, d).
  struct NewestRows {
    torch::Tensor q, k, v;
  };
  NewestRows newest_rows(const torch::Tensor& x, StrataCache& cache);

  torch::Tensor sibling_bias_;
};
TORCH_MODULE(StrataAttention);

}  // namespace strata
