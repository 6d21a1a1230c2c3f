// The trainable causal filter that makes level l of the pyramid from level l - 1 (docs/MATH.md, section 1.1):
//
//   y_m = sum_{r < taps} W_r x_{stride m - r},   m = 0 .. ceil(T / stride) - 1,   x_{<0} = 0
//
// W_r is diagonal (depthwise: weight is (taps, channels)) or full (dense: weight is (taps, channels, channels), output
// channel first). y_m depends on x_0 .. x_{stride m} only, so right padding never leaks into real rows.
#pragma once

#include <cstdint>

#include "strata/export.h"
#include "strata/hkt.h"
#include "strata/status.h"
#include "strata/tensor.h"

namespace strata {

struct CausalFilter {
  DType dtype = DType::kFloat32;  // of all arrays; sums are taken in float32, with kFloat64 in float64
  int64_t batch = 0;
  int64_t tokens = 0;  // of x
  int64_t channels = 0;
  int taps = 3;
  int stride = 2;           // 1 or 2
  bool dense = false;       // on the CPU only
  const void* x = nullptr;  // (batch, tokens, channels), dense
  const void* weight = nullptr;
  int threads = 0;  // 0: as many as OpenMP gives
};

struct CausalFilterGradients {
  const void* dy = nullptr;  // (batch, ceil(tokens / stride), channels)
  void* dx = nullptr;        // overwritten
  void* dweight = nullptr;   // overwritten
};

constexpr int64_t filtered_tokens(int64_t tokens, int stride) { return (tokens + stride - 1) / stride; }

// All levels of a pyramid of depthwise filters at once, on a GPU (strata/cuda.h):
//
//   state^(0)_t = x_t, or 0 where t >= length;   state^(l) = the filter with stride 2 of state^(l-1), before it is
//   rounded
//
// The gradients of the filters are taken with x and the states as they are stored.
inline constexpr int kMaxPyramidLevels = 5, kPyramidTaps = 3;

struct Pyramid {
  DType dtype = DType::kFloat32;        // of x, the filters and their gradients
  DType state_dtype = DType::kFloat32;  // of the states: dtype, or with kFloat32 a 16-bit type
  int64_t batch = 0, tokens = 0, channels = 0;
  int levels = 1;
  const void* x = nullptr;                     // (batch, tokens, channels), dense
  const int64_t* lengths = nullptr;            // (batch): tokens from there on count as zero; null: none do
  const void* weight[kMaxPyramidLevels] = {};  // (kPyramidTaps, channels), of level 1 on
};
struct PyramidStates {
  void* state[kMaxPyramidLevels] = {};  // (batch, hkt_level_tokens(tokens, level), channels), dense
};
struct PyramidGradients {
  PyramidStates dstates;   // read
  void* dx = nullptr;      // overwritten
  PyramidStates dweights;  // overwritten, of level 1 on
};

// The same bits at any number of threads.
STRATA_API Status causal_filter_forward(const CausalFilter& filter, void* y);
STRATA_API Status causal_filter_backward(const CausalFilter& filter, const CausalFilterGradients& gradients);

// One new token at the top of a pyramid: the rows that it adds, by depthwise filters. The newest rows of a level lie in
// a ring of at least `taps` slots, row r in slot r mod slots.
struct PyramidStep {
  DType dtype = DType::kFloat32;  // of all arrays
  int64_t batch = 0;
  int64_t channels = 0;
  int taps = 3;
  int levels = 1;  // 1..kMaxLevels

  const void* x = nullptr;               // (batch, channels): the new token
  const void* filters[kMaxLevels] = {};  // (taps, channels) each; [0] null: none in front of everything
  void* inputs = nullptr;                // (batch, input_slots, channels), updated; with filters[0]
  int64_t input_slots = 0;
  void* states[kMaxLevels] = {};  // of all levels but the last, (batch, slots, channels), updated
  int64_t slots[kMaxLevels] = {};
  const int64_t* lengths = nullptr;  // (batch): tokens before this one
  void* out = nullptr;               // (batch, levels, channels): row lengths >> l of level l; zeros where none begins
};
STRATA_API Status pyramid_step(const PyramidStep& step);

}  // namespace strata
