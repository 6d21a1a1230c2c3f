#include "theory/certificate.h"

#include <algorithm>

#include "base/stream_nodes.h"

namespace strata {

std::vector<double> node_ranges(const Matrix& scores, int64_t branching, int64_t near, bool both_sides) {
  const int64_t T = scores.rows();
  std::vector<double> ranges(static_cast<size_t>(T), 0.0);
  int64_t height = 1;
  for (int64_t size = branching; (T + size - 1) / size > near; size *= branching, ++height) {
    const int64_t nodes = (T + size - 1) / size;
    for (int64_t i = 0; i < T; ++i) {
      seen_nodes(height, i / size, nodes, branching, near, both_sides).each([&](int64_t m) {
        const auto row = scores.row(i).segment(m * size, std::min(size, T - m * size));
        ranges[i] = std::max(ranges[i], row.maxCoeff() - row.minCoeff());
      });
    }
  }
  return ranges;
}

}  // namespace strata
