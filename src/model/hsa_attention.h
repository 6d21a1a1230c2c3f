// HSA attention as a module: projections, tree or streaming attention, output projection (docs/MATH.md, section 2).
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "hsa_stream_cache.h"
#include "strata/export.h"

namespace strata {

struct HsaAttentionOptions {
  HsaAttentionOptions(int64_t model_size, int64_t heads) : model_size_(model_size), heads_(heads) {}

  TORCH_ARG(int64_t, model_size);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(int64_t, key_heads) = 0;  // 0: as many as heads; otherwise it divides heads
  // The tree form ties rows to their node's mean query, so it looks ahead inside a node, even with causal(true): it is
  // for encoders. Only streaming(true) is safe for autoregressive use.
  TORCH_ARG(bool, streaming) = false;
  TORCH_ARG(bool, causal) = false;             // tree form: only earlier siblings count
  TORCH_ARG(int64_t, branching) = 16;          // streaming form: the left-packed tree
  TORCH_ARG(bool, l2_energy) = false;          // -s |q - k|^2 / 2 instead of s <q, k>
  TORCH_ARG(bool, normalize) = false;          // LayerNorm without affine part on q and k, as in the paper
  TORCH_ARG(std::string, positions) = "none";  // "none", "sinusoidal", "learned" (vectors) or "bias" (a learned table)
  TORCH_ARG(int64_t, tables) =
      1;  // tree form: position tables, 1 for sequences, 1 + w for grids up to w wide; streaming: heights
  TORCH_ARG(int64_t, places) = 16;  // children that a family with positions may have
  TORCH_ARG(bool, projection_bias) = false;
  TORCH_ARG(int64_t, rotary) = 0;  // channels of each head that are rotated by their position (rotary.h); 0: none
  TORCH_ARG(double, rotary_base) = 10000.0;
  TORCH_ARG(bool, rotary_interleaved) = false;  // pairs of neighbouring channels, as in GPT-J, instead of halves
  TORCH_ARG(double, attention_dropout) = 0.0;   // streaming form: probability of dropping a weight in training
};

// Parameters (H heads, Hk key heads, d = model_size / H): query.weight, out.weight (model, model); key.weight,
// value.weight (Hk d, model); sibling_bias (H, tables, places, places) with "bias"; position_vectors (H, tables,
// places, 8) with "learned".
class STRATA_API HsaAttentionImpl : public torch::nn::Cloneable<HsaAttentionImpl> {
 public:
  explicit HsaAttentionImpl(const HsaAttentionOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // x: (B, T, model); trees as encode_tree gives them, one per sequence (padded) or several over B = 1 (packed).
  // weights: (B, T), 0 is padding. The streaming form takes no trees; cu_seqlens are its packed sequences
  // (torch/hkt_op.h), x is (1, rows of all, model). Returns (B, T, model).
  torch::Tensor forward(const torch::Tensor& x, const std::vector<torch::Tensor>& trees = {},
                        const c10::optional<torch::Tensor>& weights = c10::nullopt,
                        const c10::optional<torch::Tensor>& cu_seqlens = c10::nullopt, int64_t max_seqlen = 0);

  // An empty cache for step(), of `capacity` heights for fewer than b^capacity tokens; a longer stream adds some. Its
  // crop() may forget the newest `history` tokens. Streaming modules only.
  HsaStreamCache start_stream(int64_t batch, int64_t capacity = 10, int64_t history = 0) const;
  // Runs the prompts x (B, T, model) through forward() and fills a cache from which step() goes on.
  std::pair<torch::Tensor, HsaStreamCache> prefill(const torch::Tensor& x,
                                                   const c10::optional<torch::Tensor>& lengths = c10::nullopt,
                                                   int64_t capacity = 10, int64_t history = 0);
  // One new token per sequence, x: (B, model). Equals the parallel form, to rounding; costs O(b log T). No gradients.
  torch::Tensor step(const torch::Tensor& x, HsaStreamCache& cache);

  // q (B, H, T, d), k and v (B, Hk, T, d) of x, normalised and rotated if the options say so: the inputs of
  // hierarchy_score. places: (T) or (B, T), where the tokens stand; 0 .. T - 1 unless given.
  std::vector<torch::Tensor> project(const torch::Tensor& x, const torch::Tensor& places = {});
  torch::Tensor position_table() const;  // E: (H, tables, places, places), undefined without positions

  HsaAttentionOptions options;  // must not change after construction

 private:
  int64_t key_heads() const { return options.key_heads() == 0 ? options.heads() : options.key_heads(); }
  c10::optional<torch::Tensor> key_bias(const torch::Tensor& k, torch::ScalarType compute) const;

  torch::nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, out_{nullptr};
  torch::Tensor sibling_bias_, position_vectors_, sinusoidal_;
};
TORCH_MODULE(HsaAttention);

}  // namespace strata
