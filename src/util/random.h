// A random generator that gives the same numbers on every machine and with every standard library.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace strata {

// One round of splitmix64: mixes a counter, or several seeds into one.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// xoshiro256** (Blackman and Vigna 2018), seeded by splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) word = seed = mix(seed);
  }

  uint64_t next() {
    const uint64_t result = rotate(state_[1] * 5, 7) * 9, shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  // 0 .. bound - 1, for bounds below 2^32; the bias is below 2^-32 (multiply and shift).
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(((next() >> 32) * bound) >> 32); }

  // 0 <= x < 1, in steps of 2^-53.
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  static uint64_t rotate(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }
  uint64_t state_[4];
};

// The numbers 0 .. size - 1 in random order (Fisher and Yates).
inline std::vector<int64_t> permutation(int64_t size, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) order[i] = i;
  Random random(seed);
  for (int64_t i = size - 1; i > 0; --i) std::swap(order[i], order[random.below(static_cast<uint32_t>(i + 1))]);
  return order;
}

}  // namespace strata
