// The online softmax over tiles of transposed scores: lanes are rows of the attention, so nothing is horizontal.
#pragma once

#include "cpu/simd.h"

namespace strata::STRATA_ISA {

// Processes one more tile of `keys` x `lanes` scores, in units of log 2. The scores become exp2(S - peak). The running
// maximum, the sum and the factor exp2(old peak - new peak), by which earlier sums must be multiplied, are updated. A
// lane that has seen no key yet keeps peak = -inf and subtracts 0, so that its masked scores give 0 instead of the NaN
// of -inf - (-inf).
template <class T>
void online_softmax(T* scores, int64_t keys, int64_t lanes, T* peaks, T* sums, T* factors) {
  for (int64_t x = 0; x < lanes; x += kLanes<T>) {
    const Vec<T> old_peak = load(peaks + x);
    Vec<T> peak = old_peak;
    for (int64_t j = 0; j < keys; ++j) {
      const Vec<T> s = load(scores + j * lanes + x);
      peak = s > peak ? s : peak;  // skips NaN, which exp2 below passes on
    }
    const Vec<T> reference = peak == splat(-kInfinity<T>) ? Vec<T>{} : peak;
    Vec<T> sum{};
    for (int64_t j = 0; j < keys; ++j) {
      const Vec<T> e = exp2<T>(load(scores + j * lanes + x) - reference);
      store(scores + j * lanes + x, e);
      sum += e;
    }
    const Vec<T> factor = exp2<T>(old_peak - reference);
    store(peaks + x, peak);
    store(factors + x, factor);
    store(sums + x, load(sums + x) * factor + sum);
  }
}

template <class T>
void start_softmax(int64_t lanes, T* peaks, T* sums) {
  for (int64_t x = 0; x < lanes; ++x) {
    peaks[x] = -kInfinity<T>;
    sums[x] = 0;
  }
}

// The natural log of the whole sum; -inf for a row without visible keys.
template <class T>
T softmax_lse(T peak, T sum) {
  return sum == T(0) ? -kInfinity<T> : peak * kLn2<T> + natural_log(sum);
}

}  // namespace strata::STRATA_ISA
