// Packed sequences: where each of them lies.
#pragma once

#include <vector>

#include "strata/hkt.h"

namespace strata::test {

// Where sequence b lies in an array of one side: part of a batch, or rows of a packed array.
struct SequencePlace {
  int64_t part, row;
};
// First rows of all levels of packed sequences, (levels, batch), and how many rows they have.
struct PackedRows {
  PackedRows() = default;
  PackedRows(const std::vector<int64_t>& lengths, int levels) : begins(levels), totals(levels, 0) {
    for (int l = 0; l < levels; ++l) {
      for (const int64_t length : lengths) {
        begins[l].push_back(totals[l]);
        totals[l] += hkt_level_tokens(length, l);
      }
    }
  }
  SequencePlace place(int64_t b, int l) const {
    return begins.empty() ? SequencePlace{b, 0} : SequencePlace{0, begins[l][b]};
  }
  const int64_t* data(int l) const { return begins.empty() ? nullptr : begins[l].data(); }

  std::vector<std::vector<int64_t>> begins;
  std::vector<int64_t> totals;
};

}  // namespace strata::test
