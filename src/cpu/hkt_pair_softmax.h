// The softmax of a tile of the HKT forward with products of bfloat16, and the products of the next tile.
//
// With AMX these products are done in parts between parts of the softmax: they are few instructions, and tiles multiply
// while vectors compute.
#pragma once

#include "cpu/hkt_forward_tile.h"
#include "cpu/hkt_pair_tile.h"

namespace strata::STRATA_ISA {

#ifdef STRATA_TILES
constexpr bool kAhead = true;
#else
constexpr bool kAhead = false;
#endif

// The products of a tile of keys, with kAhead in four parts: quarters of those of the finest level, between the coarse
// products and their mix.
class ProductsAhead {
 public:
  ProductsAhead(const PairHead& head, const PairScores& queries, const KeyPanel& panel, const ScoreRoom (&rooms)[2])
      : head_(head), queries_(queries), panel_(panel), rooms_(rooms) {}

  // Those of the n keys from j0 on, which come next; n = 0: there are none.
  void begin(int64_t j0, int64_t n) {
    j0_ = j0, n_ = n, part_ = n > 0 ? 0 : kParts;
    if (kAhead) room_ ^= 1;
  }
  void step() {
    if (part_ == kParts) return;
    constexpr int64_t kRows = kPairKeys / kSplit, kColumns = kTile / kSplit;
    const ScoreRoom& room = rooms_[room_];
    const int64_t row = part_ / kSplit * kRows, lane = part_ % kSplit * kColumns;
    if (part_ == 0) queries_.multiply_coarse(head_, panel_, j0_, n_, room);
    if (row < n_) queries_.multiply_finest(head_, panel_, j0_, n_, {row, row + kRows}, {lane, lane + kColumns}, room);
    if (++part_ == kParts) queries_.mix_coarse(head_, n_, room);
  }
  void finish() {
    while (part_ < kParts) step();
  }
  const ScoreRoom& room() const { return rooms_[room_]; }

  static constexpr int kSplit = kAhead ? 2 : 1, kParts = kSplit * kSplit;

 private:
  const PairHead& head_;
  const PairScores& queries_;
  const KeyPanel& panel_;
  const ScoreRoom (&rooms_)[2];
  int64_t j0_ = 0, n_ = 0;
  int part_ = kParts, room_ = 0;
};

constexpr int64_t kGroup = kTile / kLanes<float> < 4 ? kTile / kLanes<float> : 4;  // vectors processed together

// The weights exp2(S - reference) of a group of queries and the keys begin .. end - 1 of n, as pairs of keys, and what
// they add to the sums. kept: the factors of dropout, which the sums do not know, or null.
template <bool kCoarse>
inline void exponentials(const PairSum& scores, int64_t begin, int64_t end, int64_t n, int64_t x0, const float* kept,
                         const Vec<float>* reference, Vec<float>* sum, BFloat16* weights) {
  for (int64_t j = begin; j < end; j += 2) {
    const bool last = j + 1 == n;  // there is no key j + 1
    const float* fine = scores.fine + j * kTile;
#pragma GCC unroll 4
    for (int64_t v = 0; v < kGroup; ++v) {
      const int64_t x = x0 + v * kLanes<float>;
      const Vec<float> start = kCoarse ? scores.upsampled(j, x) - reference[v] : -reference[v];
      Vec<float> even = exp2_short(load(fine + x) * scores.factor + start);
      Vec<float> odd = last ? Vec<float>{} : exp2_short(load(fine + kTile + x) * scores.factor + start);
      sum[v] += even + odd;
      if (kept != nullptr) {
        even *= load(kept + j * kTile + x);
        if (!last) odd *= load(kept + (j + 1) * kTile + x);
      }
      store_pairs(weights + j * kTile + 2 * x, even, odd);
    }
  }
}

// The largest scores of a group of queries, at least `peak`.
inline void raise_peaks(const PairSum& scores, int64_t n, int64_t x0, Vec<float>* peak) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t v = 0; v < kGroup; ++v) {
      const Vec<float> s = scores.at(j, x0 + v * kLanes<float>);
      peak[v] = s > peak[v] ? s : peak[v];  // skips NaN, which the exponential passes on
    }
  }
}

inline bool any_lane(VecInt<float> mask) {
  int32_t any = 0;
  for (int lane = 0; lane < kLanes<float>; ++lane) any |= mask[lane];
  return any != 0;
}

// Whether every query of a group has seen a key.
inline bool started(const Vec<float>* peak) {
  VecInt<float> none{};
  for (int64_t v = 0; v < kGroup; ++v) none |= peak[v] == splat(-kInfinity<float>);
  return !any_lane(none);
}

inline bool all_at_most(const Vec<float>* x, float limit) {
  VecInt<float> above{};
  for (int64_t v = 0; v < kGroup; ++v) above |= !(x[v] <= limit);  // so is NaN
  return !any_lane(above);
}

// online_softmax() of one tile. rows.peak is what was subtracted from scores so far. Most tiles keep it: only if the
// weights of a tile sum up to more than kMost, or if a query has seen no key yet, are the maxima looked for and
// the weights made again. Earlier sums are then seldom multiplied by anything but 1.
template <bool kCoarse>
inline void softmax_pairs(const PairSum& scores, int64_t n, const float* kept, OutputTile<float>& rows,
                          BFloat16* weights, ProductsAhead& ahead) {
  constexpr float kMost = 256;
  constexpr int64_t kN = kLanes<float>, kPart = kPairKeys / ProductsAhead::kParts;
  for (int64_t x0 = 0; x0 < kTile; x0 += kGroup * kN) {
    Vec<float> peak[kGroup], reference[kGroup], sum[kGroup], factor[kGroup];
    for (int64_t v = 0; v < kGroup; ++v) {
      peak[v] = reference[v] = load(rows.peak + x0 + v * kN);
      factor[v] = splat(1.0f);
      sum[v] = Vec<float>{};
    }
    bool keeps = false;
    if (started(peak)) {
      for (int64_t j = 0; j < n; j += kPart) {
        if constexpr (kAhead) ahead.step();
        exponentials<kCoarse>(scores, j, min(n, j + kPart), n, x0, kept, reference, sum, weights);
      }
      keeps = all_at_most(sum, kMost);
    }
    if (!keeps) {
      raise_peaks(scores, n, x0, peak);
      for (int64_t v = 0; v < kGroup; ++v) {
        reference[v] = peak[v] == splat(-kInfinity<float>) ? Vec<float>{} : peak[v];
        factor[v] = exp2<float>(load(rows.peak + x0 + v * kN) - reference[v]);
        sum[v] = Vec<float>{};
      }
      exponentials<kCoarse>(scores, 0, n, n, x0, kept, reference, sum, weights);
    }
    for (int64_t v = 0; v < kGroup; ++v) {
      const int64_t x = x0 + v * kN;
      store(rows.peak + x, peak[v]);
      store(rows.factor + x, factor[v]);
      store(rows.sum + x, load(rows.sum + x) * factor[v] + sum[v]);
    }
  }
}

}  // namespace strata::STRATA_ISA
