// Which nodes of a height a token of streaming attention sees (strata/hsa_stream.h).
#pragma once

#include <algorithm>

#include "strata/hsa_stream.h"

namespace strata {

// first .. end - 1 without hole_first .. hole_end - 1.
struct SeenNodes {
  int64_t first, end, hole_first, hole_end;

  int64_t count() const {
    const int64_t hidden = std::min(end, hole_end) - std::max(first, hole_first);
    return std::max<int64_t>(0, end - first) - std::max<int64_t>(0, hidden);
  }
  template <class F>
  void each(const F& f) const {
    for (int64_t m = first; m < end; ++m)
      if (m < hole_first || m >= hole_end) f(m);
  }
};

// ancestor: that of the token at this height, which has `nodes` nodes.
inline SeenNodes seen_nodes(int64_t height, int64_t ancestor, int64_t nodes, int64_t branching, int64_t near,
                            bool both_sides) {
  const int64_t family = ancestor / branching;
  const int64_t first = std::max<int64_t>(0, family - near + 1) * branching;
  if (!both_sides) return {first, height == 0 ? ancestor + 1 : ancestor - near + 1, 0, 0};
  const int64_t end = family + near >= nodes ? nodes : std::min(nodes, (family + near) * branching);
  if (height == 0) return {first, end, 0, 0};
  return {first, end, ancestor - near + 1, ancestor + near};
}

// What all tokens of a sequence see, in score products of one level.
struct StreamProducts {
  int64_t leaves = 0, nodes = 0;
};
inline StreamProducts stream_products(int64_t tokens, int64_t branching, int64_t near, bool both_sides) {
  StreamProducts products;
  int64_t height = 0;
  for (int64_t size = 1; height == 0 || (tokens + size - 1) / size > near; size *= branching, ++height) {
    const int64_t nodes = (tokens + size - 1) / size;
    int64_t& sum = height == 0 ? products.leaves : products.nodes;
    for (int64_t i = 0; i < tokens; ++i)
      sum += seen_nodes(height, i / size, nodes, branching, near, both_sides).count();
  }
  return products;
}

}  // namespace strata
