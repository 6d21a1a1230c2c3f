// The states of all levels of a pyramid of depthwise filters (strata/pyramid.h) in one matrix: on CUDA one kernel. Not
// operators of the dispatcher; below autograd.
#pragma once

#include <torch/torch.h>

#include <tuple>
#include <vector>

namespace strata {

struct PyramidInput {
  at::Tensor x;                     // (B, T, C)
  at::Tensor lengths;               // (B) integers, or undefined: tokens from there on count as zero
  std::vector<at::Tensor> filters;  // (kPyramidTaps, C), of level 1 on

  int64_t levels() const { return static_cast<int64_t>(filters.size()) + 1; }
  // Rows of all sequences on a level, and on all levels before it.
  int64_t rows(int64_t level) const;
  int64_t first_row(int64_t level) const;
};

// Whether pyramid_states takes these filters.
bool makes_states_at_once(const PyramidInput& input);

// (first_row(levels), C) of `type`: level after level, each (B, ceil(T / 2^l), C).
at::Tensor pyramid_states(const PyramidInput& input, at::ScalarType type);
// Gradients of x and of the filters. states: what pyramid_states returned; dstates: of the same shape and type.
std::tuple<at::Tensor, std::vector<at::Tensor>> pyramid_states_backward(const PyramidInput& input,
                                                                        const at::Tensor& states,
                                                                        const at::Tensor& dstates);

}  // namespace strata
