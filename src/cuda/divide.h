// Division of numbers below 2^31 by a divisor that is known before the launch, in two instructions instead of thirty.
#pragma once

#include <cstdint>

namespace strata::cuda {

struct Divisor {
  uint32_t value = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(int64_t divisor) : value(static_cast<uint32_t>(divisor)) {
    while ((uint64_t{1} << shift) < value) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - value)) / value + 1);
  }
#ifdef __CUDACC__
  __device__ int quotient(int x) const {
    return static_cast<int>((__umulhi(static_cast<uint32_t>(x), multiplier) + static_cast<uint32_t>(x)) >> shift);
  }
  __device__ int remainder(int x) const { return x - quotient(x) * static_cast<int>(value); }
#endif
};

#ifdef __CUDACC__
// x / divisor and what is left, neither negative; by 32-bit instructions, which are a third as many, where they
// suffice.
struct Quotient {
  int64_t value, rest;
  __device__ Quotient(int64_t x, int64_t divisor) {
    if (((x | divisor) >> 32) == 0) {
      value = static_cast<uint32_t>(x) / static_cast<uint32_t>(divisor);
    } else {
      value = x / divisor;
    }
    rest = x - value * divisor;
  }
};
#endif

}  // namespace strata::cuda
