// Where the rows of streaming attention lie, packed or not, and how its entries are numbered for dropout.
#pragma once

#include <stdint.h>

#include "base/host_device.h"
#include "base/philox.h"
#include "strata/hsa_stream.h"

namespace strata {

// Tokens of sequence b.
STRATA_SHARED int64_t stream_tokens(const HsaStreamProblem& p, int64_t b) {
  if (p.lengths == nullptr) return p.tokens;
  const int64_t length = p.lengths[b];
  return length < 0 ? 0 : length > p.tokens ? p.tokens : length;
}

// Where lse of sequence b and head h begins.
STRATA_SHARED int64_t stream_line(const HsaStreamProblem& p, int64_t b, int64_t h) {
  return p.lengths != nullptr ? h * p.packed_rows + p.q[0].begins[b] : (b * p.heads + h) * p.tokens;
}

// The weight of node m of a height is drawn with its eight neighbours, as one block. A height has at most 2^30 nodes.
STRATA_SHARED uint32_t stream_block(int64_t height, int64_t node) {
  return static_cast<uint32_t>(height << 27 | node >> 3);
}
STRATA_SHARED bool is_entry_kept(uint64_t key, uint32_t threshold, int64_t b, int64_t h, int64_t row, int64_t height,
                                 int64_t node) {
  return (kept_bits(key, threshold, static_cast<uint32_t>(b), static_cast<uint32_t>(h), static_cast<uint32_t>(row),
                    stream_block(height, node)) >>
              (node & 7) &
          1) != 0;
}

}  // namespace strata
