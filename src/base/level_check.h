// Checks of problems with levels and grouped heads (hkt.h, hsa.h, hsa_stream.h).
#pragma once

#include <cmath>

#include "base/check.h"
#include "base/text.h"
#include "strata/hkt.h"

namespace strata {

template <class Problem>
Status check_grouped_heads(const Problem& p) {
  if (p.heads >= 1 && p.key_heads >= 1 && p.heads % p.key_heads == 0) return {};
  return invalid("heads: expected a positive multiple of key_heads, got heads = ", p.heads,
                 " and key_heads = ", p.key_heads, "; each key head serves heads / key_heads query heads");
}

template <class Problem>
Status check_levels_present(const Problem& p) {
  for (int l = 0; l < p.levels; ++l) {
    if (p.q[l].data != nullptr && p.k[l].data != nullptr) continue;  // names are made for messages only
    return check_present({{text("q[", l, "]"), p.q[l].data}, {text("k[", l, "]"), p.k[l].data}});
  }
  return {};
}

template <class Gradients>
Status check_level_gradients_present(const Gradients& g, int levels) {
  for (int l = 0; l < levels; ++l) {
    if (g.dq[l].data != nullptr && g.dk[l].data != nullptr) continue;
    return check_present({{text("dq[", l, "]"), g.dq[l].data}, {text("dk[", l, "]"), g.dk[l].data}});
  }
  return {};
}

// Level weights: (heads, levels) finite numbers in the compute type of `dtype`, in memory that the host reads.
inline Status check_finite_weights(const char* name, const void* weights, DType dtype, int64_t heads, int levels) {
  for (int64_t at = 0; at < heads * levels; ++at) {
    const double a =
        dtype == DType::kFloat64 ? static_cast<const double*>(weights)[at] : static_cast<const float*>(weights)[at];
    if (!std::isfinite(a)) {
      return invalid(name, ": expected finite numbers, got ", a, " for head ", at / levels, ", level ", at % levels,
                     "; they are softmax(theta) over the levels, so look for a non-finite theta");
    }
  }
  return {};
}

// Convex level weights of the HSA problems; null stands for the weight 1 of a single level.
inline Status check_level_weights(const void* weights, DType dtype, int64_t heads, int levels, On on) {
  if (weights == nullptr && levels == 1) return {};
  if (Status s = check_present({{"level_weights", weights}}); !s.ok() || on == On::kDevice) return s;
  if (Status s = check_finite_weights("level_weights", weights, dtype, heads, levels); !s.ok()) return s;
  for (int64_t h = 0; h < heads; ++h) {
    double sum = 0;
    for (int64_t at = h * levels; at < (h + 1) * levels; ++at) {
      sum +=
          dtype == DType::kFloat64 ? static_cast<const double*>(weights)[at] : static_cast<const float*>(weights)[at];
    }
    if (std::fabs(sum - 1) > 1e-3) {
      return invalid("level_weights: expected weights that sum to 1, got ", sum, " for head ", h,
                     "; take softmax(theta) over the levels");
    }
  }
  return {};
}

}  // namespace strata
