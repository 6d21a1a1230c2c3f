// Philox4x32-10, a counter-based generator: 128 random bits from a 64-bit key and a 128-bit counter, without any state.
// Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (2011). And dropout masks made of it.
#pragma once

#include <math.h>
#include <stdint.h>

#include "base/host_device.h"

namespace strata {

struct PhiloxBlock {
  uint32_t word[4];
};

STRATA_SHARED PhiloxBlock philox(uint64_t key, PhiloxBlock counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter.word[0], b = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ k0, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ k1, static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// The key of a dropout state: different for every offset of a seed.
STRATA_SHARED uint64_t dropout_key(const int64_t* state) {
  return static_cast<uint64_t>(state[0]) + static_cast<uint64_t>(state[1]) * 0x9E3779B97F4A7C15u;
}

// A weight is kept if its 16 random bits are not below this.
STRATA_SHARED uint32_t dropout_threshold(double probability) {
  return static_cast<uint32_t>(lround(probability * 65536));
}
STRATA_SHARED double dropout_factor(uint32_t threshold) { return 65536.0 / (65536 - threshold); }

// Which of eight neighbouring entries of a row are kept, a bit each. Entry 8 `block` + x is key 8 `block` + x, or a
// node of a tree.
STRATA_SHARED uint32_t kept_bits(uint64_t key, uint32_t threshold, uint32_t batch, uint32_t head, uint32_t row,
                                 uint32_t block) {
  const PhiloxBlock random = philox(key, {{block, row, head, batch}});
  uint32_t kept = 0;
  for (int x = 0; x < 8; ++x) {
    const uint32_t bits = random.word[x / 2] >> (16 * (x % 2)) & 0xffff;
    kept |= (bits >= threshold ? 1u : 0u) << x;
  }
  return kept;
}
// The same of one entry.
STRATA_SHARED bool is_kept(uint64_t key, uint32_t threshold, uint32_t batch, uint32_t head, uint32_t row,
                           uint32_t entry) {
  return (kept_bits(key, threshold, batch, head, row, entry / 8) >> (entry % 8) & 1) != 0;
}

}  // namespace strata
