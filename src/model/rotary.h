// Rotary positions (docs/MATH.md, section 3.4): channels are rotated in pairs by an angle that grows with the position,
// so that a score depends on the difference of two positions only.
#pragma once

#include <torch/torch.h>

#include "strata/export.h"

namespace strata {

// x: (B, H, n, d); positions: (n) or (B, n) whole numbers. Of the first `size` channels, c and c + size / 2 are rotated
// by position * base^(-2 c / size), the layout of GPT-NeoX and Llama; interleaved, 2 c and 2 c + 1, that of GPT-J. The
// others stay.
STRATA_API torch::Tensor rotate(const torch::Tensor& x, const torch::Tensor& positions, int64_t size,
                                double base = 10000.0, bool interleaved = false);
// By position * frequencies[c]: (size / 2) frequencies, which may be scaled.
STRATA_API torch::Tensor rotate(const torch::Tensor& x, const torch::Tensor& positions,
                                const torch::Tensor& frequencies, bool interleaved = false);
// Where the rows of packed sequences stand, (rows): each sequence begins at 0. begins: (n) the first row of each.
STRATA_API torch::Tensor places_in_sequences(int64_t rows, const torch::Tensor& begins);

}  // namespace strata
