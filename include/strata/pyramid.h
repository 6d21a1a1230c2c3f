// The trainable causal filter that makes level l of the pyramid from level l - 1 (docs/MATH.md, section 1.1):
//
//   y_m = sum_{r < taps} W_r x_{stride m - r},   m = 0 .. ceil(T / stride) - 1,   x_{<0} = 0
//
// W_r is diagonal (depthwise: weight is (taps, channels)) or full (dense: weight is (taps, channels, channels), output
// channel first). y_m depends on x_0 .. x_{stride m} only, so right padding never leaks into real rows.
#pragma once

#include <cstdint>

#include "strata/export.h"
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

// The same bits at any number of threads.
STRATA_API Status causal_filter_forward(const CausalFilter& filter, void* y);
STRATA_API Status causal_filter_backward(const CausalFilter& filter, const CausalFilterGradients& gradients);

}  // namespace strata
