// What the operators of the streaming form share: the checks of their tensors, and the problem made of them.
#pragma once

#include <limits>

#include "strata/hsa_stream.h"
#include "torch/hsa_op_common.h"

namespace strata::hsa_op {

struct StreamShape {
  int64_t branching, near;
  bool both_sides;
};

inline void check_stream(const HsaInputs& in, const StreamShape& shape) {
  const int64_t T = in.q.empty() || in.q[0].dim() != 4 ? 0 : in.q[0].size(2);
  check_inputs(in, [T](int l) { return hkt_level_tokens(T, l); });
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
        level_weights(dense(in.level_weights)) {
    fill_common(p, {in.q, in.k, in.v, weights, key_bias, positions, level_weights}, scale);
    p.batch = in.q[0].size(0);
    p.tokens = in.q[0].size(2);
    p.branching = static_cast<int>(shape.branching);
    p.near = static_cast<int>(shape.near);
    p.both_sides = shape.both_sides;
    p.heights = positions.has_value() ? positions->size(1) : 0;
  }
  StreamProblem(const StreamProblem&) = delete;
  optional<Tensor> weights, key_bias, positions, level_weights;
  HsaStreamProblem p;
};

}  // namespace strata::hsa_op
