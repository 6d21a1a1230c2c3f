// Dropout on a tile of weights (base/philox.h).
#pragma once

#include "base/philox.h"
#include "cpu/simd.h"
#include "strata/dropout.h"

namespace strata::STRATA_ISA {

// The factors of the weights of one row block: 0 or 1 / (1 - p).
template <class T>
class DropoutTile {
 public:
  DropoutTile(const Dropout& dropout, int64_t b, int64_t h)
      : active_(dropout.probability > 0), b_(static_cast<uint32_t>(b)), h_(static_cast<uint32_t>(h)) {
    if (!active_) return;
    key_ = dropout_key(dropout.state);
    threshold_ = dropout_threshold(dropout.probability);
    factor_ = static_cast<T>(dropout_factor(threshold_));
  }
  bool active() const { return active_; }

  // Calls f(key, factors of `kRows` rows from i0 on) for keys j0 .. j0 + n - 1; j0 is a multiple of 8. entry: of key 0,
  // where keys are counted from elsewhere.
  template <int64_t kRows, class F>
  void each_key(int64_t i0, int64_t j0, int64_t n, const F& f) const {
    T factors[8][kRows];
    for (int64_t block = 0; block < n; block += 8) {
      uint32_t words[4][kRows];
      random_words<kRows>(static_cast<uint32_t>(i0), static_cast<uint32_t>((j0 + block) / 8), words);
      for (int64_t x = 0; x < 8; ++x) {
        for (int64_t i = 0; i < kRows; ++i)
          factors[x][i] = (words[x / 2][i] >> (16 * (x % 2)) & 0xffff) >= threshold_ ? factor_ : T(0);
      }
      for (int64_t x = 0; x < min(8, n - block); ++x) f(block + x, factors[x]);
    }
  }

 private:
  // philox() of kRows neighbouring rows at once, so that the compiler uses vectors.
  template <int64_t kRows>
  void random_words(uint32_t row, uint32_t block, uint32_t (&words)[4][kRows]) const {
    for (int64_t i = 0; i < kRows; ++i) {
      words[0][i] = block;
      words[1][i] = row + static_cast<uint32_t>(i);
      words[2][i] = h_;
      words[3][i] = b_;
    }
    uint32_t k0 = static_cast<uint32_t>(key_), k1 = static_cast<uint32_t>(key_ >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int64_t i = 0; i < kRows; ++i) {
        const uint64_t a = uint64_t{0xD2511F53u} * words[0][i], b = uint64_t{0xCD9E8D57u} * words[2][i];
        words[0][i] = static_cast<uint32_t>(b >> 32) ^ words[1][i] ^ k0;
        words[1][i] = static_cast<uint32_t>(b);
        words[2][i] = static_cast<uint32_t>(a >> 32) ^ words[3][i] ^ k1;
        words[3][i] = static_cast<uint32_t>(a);
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  bool active_;
  uint32_t b_, h_;
  uint64_t key_ = 0;
  uint32_t threshold_ = 0;
  T factor_ = 1;
};

}  // namespace strata::STRATA_ISA
