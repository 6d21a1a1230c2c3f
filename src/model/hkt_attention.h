// HKT attention as a module: pyramid, projections, mixed attention, output projection (docs/MATH.md, section 1).
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

#include "hkt_cache.h"
#include "strata/export.h"

namespace strata {

struct HktAttentionOptions {
  HktAttentionOptions(int64_t model_size, int64_t heads) : model_size_(model_size), heads_(heads) {}

  TORCH_ARG(int64_t, model_size);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(int64_t, key_heads) = 0;               // 0: as many as heads; otherwise it divides heads
  TORCH_ARG(int64_t, levels) = 3;                  // 1 is flat attention
  TORCH_ARG(int64_t, taps) = 3;                    // of every causal filter
  TORCH_ARG(bool, dense_filters) = false;          // full matrices instead of one weight per channel
  TORCH_ARG(bool, input_filter) = false;           // a stride-1 causal filter in front of everything, values included
  TORCH_ARG(bool, per_level_projections) = false;  // one W_Q, W_K pair per level instead of one for all
  // The convex weights of the levels, for all heads, if training must not change them; none: they are learned.
  TORCH_ARG(std::vector<double>, fixed_level_weights) = {};
  TORCH_ARG(bool, psd) = false;  // k = q (I + Omega)^T: the symmetrised kernel is PSD by construction
  TORCH_ARG(bool, projection_bias) = false;
  TORCH_ARG(bool, causal) = false;

  TORCH_ARG(int64_t, window_left) = -1;  // token i sees tokens i - left .. i + right only; -1: without end
  TORCH_ARG(int64_t, window_right) = -1;
  TORCH_ARG(bool, alibi) = false;              // scores fall with the distance, by the slopes 2^(-8/H), 2^(-16/H), ..
  TORCH_ARG(double, attention_dropout) = 0.0;  // probability with which attention weights are dropped in training

  TORCH_ARG(int64_t, rotary) = 0;  // channels of each head that are rotated by their position (rotary.h); 0: none
  TORCH_ARG(double, rotary_base) = 10000.0;
  TORCH_ARG(bool, rotary_interleaved) = false;  // pairs of neighbouring channels, as in GPT-J, instead of halves
};

// What the sequences of one call have beside their tokens.
struct HktInput {
  TORCH_ARG(c10::optional<torch::Tensor>, lengths) = c10::nullopt;  // (B) real tokens, the rest is padding on the right
  TORCH_ARG(c10::optional<torch::Tensor>, bias) = c10::nullopt;     // broadcasts to (B, H, T, Tk)
  TORCH_ARG(c10::optional<torch::Tensor>,
            key) = c10::nullopt;  // (B, Tk, model): keys and values come from it, not from x
  TORCH_ARG(c10::optional<torch::Tensor>, key_lengths) = c10::nullopt;
  TORCH_ARG(c10::optional<int64_t>, window_left) = c10::nullopt;  // in place of the module's
  // Packed sequences (torch/hkt_op.h): x is (1, rows of all, model), and each has its own pyramid.
  TORCH_ARG(c10::optional<torch::Tensor>, cu_seqlens) = c10::nullopt;
  TORCH_ARG(c10::optional<torch::Tensor>, key_cu_seqlens) = c10::nullopt;
  TORCH_ARG(int64_t, max_seqlen) = 0;
  TORCH_ARG(int64_t, key_max_seqlen) = 0;
};

// Parameters, by their names in a state dict (H heads, Hk key heads, d = model_size / H):
//   query.weight (H d, model), key.weight (Hk d, model)   or query_<l>.weight, key_<l>.weight with
//   per_level_projections direction (H, d, d), or direction_<l>                 in place of the keys, with psd: Omega =
//   direction - direction^T value.weight (Hk d, model), out.weight (model, H d) filter_<l> (taps, model) or (taps,
//   model, model)      for l = 1 .. levels - 1, and l = 0 with input_filter level_logits (H, levels) the convex weights
//   are their softmax
class STRATA_API HktAttentionImpl : public torch::nn::Cloneable<HktAttentionImpl> {
 public:
  explicit HktAttentionImpl(const HktAttentionOptions& options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // x: (B, T, model). lengths: (B) real tokens of each sequence, the rest is padding on the right. bias broadcasts to
  // (B, H, T, T). Returns (B, T, model); padding rows are the output projection of zero.
  torch::Tensor forward(const torch::Tensor& x, const c10::optional<torch::Tensor>& lengths = c10::nullopt,
                        const c10::optional<torch::Tensor>& bias = c10::nullopt);

  // forward() with all that a call may have.
  torch::Tensor attend(const torch::Tensor& x, const HktInput& input);

  // Runs the prompts x (B, T, model) through forward() and fills a cache from which step() goes on. Causal modules
  // only.
  std::pair<torch::Tensor, HktCache> prefill(const torch::Tensor& x,
                                             const c10::optional<torch::Tensor>& lengths = c10::nullopt,
                                             const HktCacheOptions& cache = {});
  // One new token per sequence, x: (B, model). Equals the last row of the parallel forward, to rounding. No gradients.
  torch::Tensor step(const torch::Tensor& x, HktCache& cache);

  torch::Tensor level_weights() const;  // (H, levels), each row sums to one
  // x^(l): (B, ceil(T / 2^l), model) for each level; with cu_seqlens those of packed sequences.
  std::vector<torch::Tensor> pyramid(const torch::Tensor& x,
                                     const c10::optional<torch::Tensor>& cu_seqlens = c10::nullopt) const;
  // States of level l, (B, n, model), to (B, H, n, d) and (B, Hk, n, d). rows: (n) or (B, n), which rows of the level
  // they are, for rotary positions; 0 .. n - 1 unless given.
  std::pair<torch::Tensor, torch::Tensor> project(const torch::Tensor& states, int64_t level,
                                                  const torch::Tensor& rows = {});

  int64_t head_size() const { return options.model_size() / options.heads(); }

  HktAttentionOptions options;  // fixed once the module is made

  // If set, stands where softmax attention stood: q, k, v (B, H, T, d) to (B, H, T, d). Only of a module with one
  // level.
  std::function<torch::Tensor(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v)>
      in_place_of_softmax;

 protected:
  // q and k of every level, and v, of whole sequences x (B, T, model). Tokens from `lengths` on count as zero.
  struct Projected {
    std::vector<torch::Tensor> q, k;
    torch::Tensor v;
  };
  Projected project_all(const torch::Tensor& x, const c10::optional<torch::Tensor>& cu_seqlens = c10::nullopt,
                        const c10::optional<torch::Tensor>& lengths = c10::nullopt);

  // The rows that one new token x (B, model) at the lengths `at` adds to the pyramid: take(level, sequences, row, q, k)
  // for every level, with the sequences that get a new row there, (n), its number and its q and k, (n, H, 1, d).
  // `states` are the newest states of a level, (B, taps + .., model), `inputs` those before the input filter; both are
  // rings, and updated. Returns v (B, Hk, 1, d).
  using TakeRow = std::function<void(int64_t level, const torch::Tensor& sequences, const torch::Tensor& row,
                                     const torch::Tensor& q, const torch::Tensor& k)>;
  torch::Tensor advance(const torch::Tensor& x, const CacheLengths& at, torch::Tensor& inputs,
                        const std::function<torch::Tensor&(int64_t level)>& states, const TakeRow& take);
  // The same rows for all sequences and levels, whether they begin or not, by launches that do not depend on the
  // lengths (B): a captured graph serves every token. On CUDA, with depthwise filters: q[l], k[l] and v are (B, H, 1,
  // d); those of levels of which no row begins mean nothing.
  bool has_same_launches(const torch::Tensor& x) const { return x.is_cuda() && !options.dense_filters(); }
  Projected project_newest(const torch::Tensor& x, const torch::Tensor& lengths, const torch::Tensor& inputs,
                           const std::vector<torch::Tensor>& states);
  // The newest states of every level behind prompts x with `lengths` (B) tokens, as `advance` keeps them.
  std::vector<torch::Tensor> newest_states(const torch::Tensor& x, const torch::Tensor& lengths, int64_t history,
                                           torch::Tensor& inputs) const;

  int64_t key_heads() const { return options.key_heads() == 0 ? options.heads() : options.key_heads(); }
  torch::Tensor split_heads(const torch::Tensor& x, int64_t heads) const;

  torch::nn::Linear value_{nullptr}, out_{nullptr};

 private:
  torch::Tensor initial_filter(bool identity) const;
  // project_all where the module is of the usual form; no queries otherwise (hkt_project.h).
  Projected project_levels_at_once(const torch::Tensor& x, const c10::optional<torch::Tensor>& lengths) const;
  // The tokens at which rows of a level stand, all rows of states (.., n, channels) unless `rows` are given; undefined
  // without rotary positions.
  torch::Tensor row_positions(const torch::Tensor& states, int64_t level, const torch::Tensor& rows) const;
  // Turns q and k by the positions of their rows, if the module has rotary ones.
  void rotate_at(torch::Tensor& q, torch::Tensor& k, const torch::Tensor& positions) const;
  // q and k of states (B, n, model) at tokens `positions`, (n) or (B, n), by one set of projections.
  std::pair<torch::Tensor, torch::Tensor> project_at(const torch::Tensor& states, int64_t set,
                                                     const torch::Tensor& positions);

  std::vector<torch::nn::Linear> queries_, keys_;  // one, or one per level
  torch::Tensor level_logits_;
  std::vector<torch::Tensor> filters_;  // [l] for l = 0 .. levels - 1; [0] undefined without input_filter
  std::vector<torch::Tensor> directions_;
};
TORCH_MODULE(HktAttention);

// Ordinary attention: the same operator with one level.
class STRATA_API FlatAttentionImpl : public HktAttentionImpl {
 public:
  explicit FlatAttentionImpl(HktAttentionOptions options) : HktAttentionImpl(options.levels(1)) {}
};
TORCH_MODULE(FlatAttention);

}  // namespace strata
