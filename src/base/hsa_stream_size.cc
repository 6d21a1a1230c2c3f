// How large streaming HSA grows with the length of the stream: every formula follows the digits of the length in base
// b.
#include "strata/hsa_stream.h"

namespace strata {

int64_t hsa_stream_heights(int64_t tokens, int branching) {
  int64_t heights = 1;
  for (int64_t rest = tokens; rest >= branching; rest /= branching) ++heights;
  return heights;
}

int64_t hsa_stream_entries(int64_t tokens, int branching) {
  int64_t entries = 0;
  for (int64_t rest = tokens; rest > 0; rest /= branching) entries += rest % branching;
  return entries;
}

int64_t hsa_stream_cost(int64_t tokens, int branching) {
  int64_t products = 0;
  for (int64_t t = 0; t < tokens; ++t) products += 1 + hsa_stream_entries(t, branching);
  return products;
}

}  // namespace strata
