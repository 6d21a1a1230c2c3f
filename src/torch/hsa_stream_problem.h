// What the operators of the streaming form share: the checks of their tensors, and the problem made of them.
#pragma once

#include <limits>

#include "strata/hsa_stream.h"
#include "torch/hsa_op_common.h"
#include "torch/packed.h"

namespace strata::hsa_op {

struct StreamShape {
  int64_t branching, near;
  bool both_sides;
  optional<Tensor> cu_seqlens = c10::nullopt;
  int64_t max_seqlen = 0;
  double dropout = 0;
  optional<Tensor> dropout_state = c10::nullopt;

  int64_t sequences() const { return cu_seqlens->size(0) - 1; }
};

inline void check_stream(const HsaInputs& in, const StreamShape& shape) {
  const int64_t T = in.q.empty() || in.q[0].dim() != 4 ? 0 : in.q[0].size(2);
  const bool packed = shape.cu_seqlens.has_value();
  check_inputs(in, [&](int l) { return packed ? packed_rows(T, shape.sequences(), l) : hkt_level_tokens(T, l); });
  if (packed) check_cu_seqlens("cu_seqlens", *shape.cu_seqlens, shape.sequences(), T, in.q[0]);
  check_dropout(shape.dropout, shape.dropout_state, in.q[0]);
  TORCH_CHECK(shape.near >= 1 && shape.near <= std::numeric_limits<int>::max(),
              "near: expected 1 or more families, got ", shape.near);
  if (!in.positions.has_value()) return;
  const Tensor& table = *in.positions;
  const int64_t H = in.q[0].size(1), b = shape.branching;
  const int64_t distances = hsa_stream_distances(static_cast<int>(shape.near), shape.both_sides);
  const bool right = table.dim() == 5   ? table.sizes() == at::IntArrayRef({H, table.size(1), distances, b, b})
                     : table.dim() == 4 ? distances == 1 && table.sizes() == at::IntArrayRef({H, table.size(1), b, b})
                                        : false;
  TORCH_CHECK(right, "positions: expected shape (", H, ", heights, ", distances, ", ", b, ", ", b,
              distances == 1 ? "), or without the 1" : ")", ", got ", table.sizes());
}

struct StreamProblem {
  StreamProblem(const HsaInputs& in, const StreamShape& shape, const optional<double>& scale)
      : weights(dense(in.weights)),
        key_bias(dense(in.key_bias)),
        positions(dense(in.positions)),
        level_weights(dense(in.level_weights)),
        dropout_state(dense(shape.dropout_state)),
        packed(shape.cu_seqlens, in.levels(), shape.max_seqlen) {
    fill_common(p, {in.q, in.k, in.v, weights, key_bias, positions, level_weights}, scale);
    p.batch = in.q[0].size(0);
    p.tokens = in.q[0].size(2);
    p.dropout.probability = shape.dropout;
    if (dropout_state.has_value()) p.dropout.state = dropout_state->data_ptr<int64_t>();
    if (packed.given()) pack(shape.sequences());
    p.branching = static_cast<int>(shape.branching);
    p.near = static_cast<int>(shape.near);
    p.both_sides = shape.both_sides;
    p.heights = positions.has_value() ? positions->size(1) : 0;
  }
  StreamProblem(const StreamProblem&) = delete;
  optional<Tensor> weights, key_bias, positions, level_weights, dropout_state;
  PackedSequences packed;
  HsaStreamProblem p;

 private:
  void pack(int64_t sequences) {
    p.packed_rows = p.tokens;
    p.batch = sequences;
    p.tokens = packed.longest;
    p.lengths = packed.lengths.data_ptr<int64_t>();
    for (int l = 0; l < p.levels; ++l) {
      p.q[l] = packed.packed(p.q[l], l);
      p.k[l] = packed.packed(p.k[l], l);
    }
    for (ConstView* view : {&p.v, &p.weights, &p.key_bias}) *view = packed.packed(*view);
  }
};

}  // namespace strata::hsa_op
