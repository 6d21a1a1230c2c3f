// How large streaming attention grows with the length of the stream.
#include <algorithm>

#include "strata/hsa_stream.h"

namespace strata {

int64_t hsa_stream_heights(int64_t tokens, int branching) {
  int64_t heights = 1;
  for (int64_t rest = tokens; rest >= branching; rest /= branching) ++heights;
  return heights;
}

int64_t hsa_stream_entries(int64_t tokens, int branching, int near) {
  int64_t entries = 0;
  bool leaves = true;
  for (int64_t ancestor = tokens; leaves || ancestor >= near; ancestor /= branching, leaves = false) {
    const int64_t first = std::max<int64_t>(0, ancestor / branching - near + 1) * branching;
    entries += (leaves ? ancestor : ancestor - near + 1) - first;
  }
  return entries;
}

int64_t hsa_stream_slots(int64_t tokens, int branching, int near) {
  const int64_t ring = int64_t{near} * branching;
  int64_t slots = 0;
  for (int64_t nodes = tokens; nodes > 0; nodes /= branching) slots += std::min(nodes, ring);
  return slots;
}

int64_t hsa_stream_cost(int64_t tokens, int branching, int near) {
  int64_t products = 0;
  for (int64_t t = 0; t < tokens; ++t) products += 1 + hsa_stream_entries(t, branching, near);
  return products;
}

}  // namespace strata
