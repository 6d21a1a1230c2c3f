// Strata attention as a module: HKT's levels on HSA's trees (docs/MATH.md, section 3).
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "model/hkt_attention.h"
#include "model/hsa_attention.h"

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

// What the streaming form remembers: O(near b log T) nodes, and of each level the newest rows.
class STRATA_API StrataCache {
 public:
  struct Level {
    torch::Tensor query, key;  // (B, H, 1, d), (B, Hk, 1, d): of the newest row
    torch::Tensor recent;      // (B, taps, model): the newest states, oldest first
  };
  HsaStreamCache nodes;
  std::vector<Level> levels;
  torch::Tensor recent_inputs;  // (B, taps, model) before the input filter; undefined without one
  int64_t near = 0;

  std::vector<std::pair<std::string, torch::Tensor>> state() const;  // for save_safetensors, and back
  static StrataCache from_state(const std::vector<std::pair<std::string, torch::Tensor>>& state);
};

// Parameters: those of HktAttention, and sibling_bias with "bias": (H, tables, places, places) of the tree form,
// (H, tables, distances, branching, branching) of the others.
class STRATA_API StrataAttentionImpl : public HktAttentionImpl {
 public:
  explicit StrataAttentionImpl(const StrataAttentionOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(const c10::optional<torch::Device>& device = c10::nullopt) const override;

  // x: (B, T, model); trees: of the tree form, as in HsaAttention. weights: (B, T), 0 is padding. Returns (B, T,
  // model).
  torch::Tensor forward(const torch::Tensor& x, const std::vector<torch::Tensor>& trees = {},
                        const c10::optional<torch::Tensor>& weights = c10::nullopt);

  // The streaming form only. An empty cache; it has room for b^capacity tokens.
  StrataCache start_stream(int64_t batch, int64_t capacity = 10);
  // Runs the prompts x (B, T, model) through forward() and fills a cache from which step() goes on.
  std::pair<torch::Tensor, StrataCache> prefill(const torch::Tensor& x,
                                                const c10::optional<torch::Tensor>& lengths = c10::nullopt,
                                                int64_t capacity = 10);
  // One new token per sequence, x: (B, model). Equals the parallel form, to rounding. No gradients.
  torch::Tensor step(const torch::Tensor& x, StrataCache& cache);

  StrataAttentionOptions strata_options;  // must not change after construction

 private:
  Projected project_sequences(const torch::Tensor& x, const std::vector<torch::Tensor>& trees);
  void fill_nodes(HsaStreamCache& nodes, const Projected& p, const torch::Tensor& lengths) const;
  void check_streaming(const char* what) const;

  torch::Tensor sibling_bias_;
};
TORCH_MODULE(StrataAttention);

}  // namespace strata
