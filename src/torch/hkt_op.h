// HKT attention as torch operators. In Python they are torch.ops.strata.hkt_attention and so on.
#pragma once

#include <torch/torch.h>

#include <tuple>
#include <vector>

#include "strata/export.h"

namespace strata {

struct HktOptions {
  c10::optional<at::Tensor> lengths = c10::nullopt;  // (B) integers: real tokens of each sequence
  c10::optional<at::Tensor> key_lengths =
      c10::nullopt;                               // of the keys; unless given, lengths if both sides have T tokens
  c10::optional<at::Tensor> bias = c10::nullopt;  // broadcasts to (B, H, T, Tk); added to the scaled scores
  bool causal = false;
  c10::optional<double> scale = c10::nullopt;   // 1 / sqrt(head size) unless given
  int64_t window_left = -1, window_right = -1;  // key j is seen by query i if i - left <= j <= i + right; -1: no end
  c10::optional<at::Tensor> slopes = c10::nullopt;         // (H), ALiBi: - slope |i - j| is added to the scores
  double dropout = 0;                                      // probability with which a weight is dropped
  c10::optional<at::Tensor> dropout_state = c10::nullopt;  // (2) int64, seed and offset; drawn from torch's generator

  // Packed sequences: the first row of each, and the end of the last, (B + 1) integers; of the keys if they differ.
  c10::optional<at::Tensor> cu_seqlens = c10::nullopt, key_cu_seqlens = c10::nullopt;
  int64_t max_seqlen = 0, key_max_seqlen = 0;  // at least the longest; 0: looked up, which waits for the GPU
};

// q[l]: (B, H, ceil(T / 2^l), d), k[l]: (B, Hk, ceil(Tk / 2^l), d), v: (B, Hk, Tk, dv), weights: (H, levels).
// Returns out (B, H, T, dv) and lse (B, H, T), the natural log of each row's sum; both are differentiable, once.
// Packed, the batch is 1, T are the rows of all sequences, and level l has packed_rows(T, B, l) rows, the pyramid of
// each sequence behind that of the one before it.
STRATA_API std::tuple<at::Tensor, at::Tensor> hkt_attention(at::TensorList q, at::TensorList k, const at::Tensor& v,
                                                            const at::Tensor& weights, const HktOptions& options = {});

// Rows of level l of packed sequences: enough for any lengths with this sum, so that no length need be known.
constexpr int64_t packed_rows(int64_t rows, int64_t sequences, int level) {
  for (int l = 0; l < level; ++l) rows = (rows + sequences) / 2;
  return rows;
}
// The first rows of packed sequences, (levels, B) int64, from cu_seqlens.
STRATA_API at::Tensor packed_begins(const at::Tensor& cu_seqlens, int64_t levels);

// One new token per sequence, the newest of `lengths` (B): k[l] and v are (B, Hk, slots, d), q[l] is (B, H, slots, d)
// or (B, H, 1, d). Row r of each has slot r mod its number of slots, which are enough for the visible tokens; of the
// tokens before the new one those are the newest `window`, all if it is negative. Returns (B, H, 1, dv). Not
// differentiable.
STRATA_API at::Tensor hkt_decode(at::TensorList q, at::TensorList k, const at::Tensor& v, const at::Tensor& weights,
                                 const at::Tensor& lengths, c10::optional<double> scale = c10::nullopt,
                                 int64_t window = -1);

// The rows that a new token adds to such a cache, written in place: q[l], k[l] and v are (B, H, 1, d), rows lengths >>
// l of level l. Those of a level are written where such a row begins: where lengths (B), the tokens before, is a
// multiple of 2^l. With `current`, returns rows lengths >> l of all levels, new or not, (B, H, levels, d) of q and of
// k; empty tensors otherwise. Nothing depends on lengths but what is written, so a captured graph serves every token.
STRATA_API std::tuple<at::Tensor, at::Tensor> hkt_append(at::TensorList q, at::TensorList k,
                                                         const c10::optional<at::Tensor>& v, at::TensorList queries,
                                                         at::TensorList keys, const c10::optional<at::Tensor>& values,
                                                         const at::Tensor& lengths, bool current = false);

// The rows that a new token x (B, C) adds to a pyramid by depthwise filters (taps, C): row lengths >> l of every level,
// (B, levels, C), zeros where none begins. `states` are rings of the newest rows of all levels but the last,
// (B, taps or more, C), updated. `filters` are those of levels 1, 2, ..; with `inputs`, a ring of the newest inputs,
// the first is that of a filter in front of everything.
STRATA_API at::Tensor pyramid_step(const at::Tensor& x, at::TensorList filters, const c10::optional<at::Tensor>& inputs,
                                   at::TensorList states, const at::Tensor& lengths);

// y_m = sum_r W_r x_{stride m - r}. x: (B, T, C); weight: (taps, C) depthwise or (taps, C, C) dense. Differentiable.
// With cu_seqlens, x is (1, T, C) of packed sequences, which the filter keeps apart; with stride 2 the result has
// packed_rows(T, B, 1) rows.
STRATA_API at::Tensor causal_filter(const at::Tensor& x, const at::Tensor& weight, int64_t stride,
                                    const c10::optional<at::Tensor>& cu_seqlens = c10::nullopt);

}  // namespace strata
