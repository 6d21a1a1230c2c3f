// The next token, drawn from a model's logits.
#pragma once

#include <cstdint>
#include <vector>

#include "util/random.h"

namespace strata {

struct SampleOptions {
  double temperature = 1;  // 0: always the likeliest
  int64_t top_k = 0;       // only the k likeliest; 0: all
  double top_p = 1;        // only the likeliest that together have this probability
};

// p ~ exp(logits / temperature), cut to the k likeliest, then to the fewest likeliest of probability top_p,
// renormalised. Among equals the smaller token is first. Tokens whose logits are not finite are never drawn; -1 if none
// is finite.
int64_t sample_token(const std::vector<double>& logits, const SampleOptions& options, Random& random);

}  // namespace strata
