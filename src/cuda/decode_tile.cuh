// What the decoding kernels share: one query of each head against many keys. A warp has a tile of 32 keys, a group of
// eight lanes eight of them. The lanes of a group read a row together, 16 bytes each at a time ("chunks"), and sum its
// product with the query; after an exchange of sums lane i of a warp has the score of key i of its tile.
#pragma once

#include <cmath>
#include <cstring>

#include "cuda/mma.cuh"
#include "cuda/online_softmax.cuh"
#include "cuda/storage.h"
#include "cuda/warp.cuh"

namespace strata::cuda {

constexpr int kGroup = 8;      // lanes that read a row, and keys of a group
constexpr int kTileKeys = 32;  // of a warp
constexpr int kDecodeWarps = 4, kDecodeThreads = 32 * kDecodeWarps;

__device__ inline int group_of_lane() { return lane_of_thread() / kGroup; }
__device__ inline int place_in_group() { return lane_of_thread() % kGroup; }

// Numbers of 16 bytes, and of a chunk of all lanes of a group.
template <class S>
constexpr int kOf16Bytes = 16 / static_cast<int>(sizeof(S));
template <class S>
constexpr int kChunkNumbers = kGroup* kOf16Bytes<S>;

// The first channel of this lane's part of chunk c.
template <class S>
__device__ inline int first_channel(int c) {
  return c * kChunkNumbers<S> + place_in_group() * kOf16Bytes<S>;
}

// This lane's part of a chunk: zeros where the row has no such channels or `there` is false. aligned: channels lie side
// by side, and rows can be read 16 bytes at a time.
template <class S, bool kAligned>
__device__ inline uint4 load_part(const S* row, int64_t channel_stride, int channel, int channels, bool there) {
  uint4 bits = {0, 0, 0, 0};
  if constexpr (kAligned) {
    if (there && channel < channels) bits = *reinterpret_cast<const uint4*>(row + channel);
  } else if (there) {
    S numbers[kOf16Bytes<S>];
#pragma unroll
    for (int e = 0; e < kOf16Bytes<S>; ++e) {
      numbers[e] = S(0.0f);
      if (channel + e < channels) numbers[e] = row[(channel + e) * channel_stride];
    }
    memcpy(&bits, numbers, sizeof bits);
  }
  return bits;
}

__device__ inline void widen(const uint4& bits, float (&to)[8], __nv_bfloat16) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    to[2 * w] = __uint_as_float(words[w] << 16);
    to[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
  }
}
__device__ inline void widen(const uint4& bits, float (&to)[8], __half) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    __half2 pair;
    memcpy(&pair, &words[w], sizeof pair);
    const float2 wide = __half22float2(pair);
    to[2 * w] = wide.x, to[2 * w + 1] = wide.y;
  }
}
__device__ inline void widen(const uint4& bits, float (&to)[4], float) { memcpy(to, &bits, sizeof bits); }
__device__ inline void widen(const uint4& bits, double (&to)[2], double) { memcpy(to, &bits, sizeof bits); }

// sums[h][i] += <part of row i, the same part of the query of head h>. queries: of the first head, in shared memory,
// those of the others `stride` numbers apart.
template <class S, int kHeads, int kRows, class C>
__device__ inline void add_products(const uint4 (&rows)[kRows], const C* queries, int stride,
                                    C (&sums)[kHeads][kRows]) {
  constexpr int kNumbers = kOf16Bytes<S>;
  C query[kHeads][kNumbers];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int e = 0; e < kNumbers; ++e) query[h][e] = queries[h * stride + e];
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    C key[kNumbers];
    widen(rows[i], key, S());
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int e = 0; e < kNumbers; ++e) sums[h][i] += key[e] * query[h][e];
    }
  }
}

// sums: of each key of the group, this lane's part. Returns the whole sum of the key that is this lane's place: seven
// exchanges in place of three for each of eight keys.
template <class C>
__device__ inline C own_sum(C (&sums)[kGroup]) {
#pragma unroll
  for (int half = kGroup / 2; half > 0; half /= 2) {
    const bool upper = (place_in_group() & half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const C given = upper ? sums[i] : sums[i + half], kept = upper ? sums[i + half] : sums[i];
      sums[i] = kept + __shfl_xor_sync(~0u, given, half);
    }
  }
  return sums[0];
}

__device__ inline float power_of_2(float x) { return fast_exp2(x); }
__device__ inline double power_of_2(double x) { return exp2(x); }

// The softmax of one query head and the mix of values under it, of the keys that a warp sees. Scores are in base 2. A
// lane has the sum of its own keys' weights, and of its group's keys this lane's parts of kChunks chunks of the values.
template <class S, int kChunks>
struct DecodedHead {
  using C = typename ComputeOf<S>::Type;
  C max = -static_cast<C>(INFINITY), sum = 0;
  C mixed[kChunks][kOf16Bytes<S>] = {};

  // One score per lane, -inf where there is no key: returns its weight.
  __device__ C add(C score) {
    const C old = max;
    max = fmax(old, warp_max(score));
    const C rescale = power_of_2(old - finite_or_zero(max)), weight = power_of_2(score - finite_or_zero(max));
    sum = sum * rescale + weight;
#pragma unroll
    for (auto& chunk : mixed) {
#pragma unroll
      for (C& number : chunk) number *= rescale;
    }
    return weight;
  }
  // Adds up what the lanes have, and writes it: `stats` two numbers, `line` the channels.
  __device__ void write(C* stats, C* line, int channels) {
    sum = warp_sum(sum);
    if (lane_of_thread() == 0) stats[0] = max, stats[1] = sum;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int e = 0; e < kOf16Bytes<S>; ++e) {
        C number = mixed[c][e];
        number += __shfl_xor_sync(~0u, number, 8);
        number += __shfl_xor_sync(~0u, number, 16);
        const int channel = first_channel<S>(c) + e;
        if (group_of_lane() == 0 && channel < channels) line[channel] = number;
      }
    }
  }
};

// After add() of all heads: mixes this lane's part of chunk c of the group's values. They must be finite where there is
// no key.
template <class S, int kChunks, int kHeads, class C>
__device__ inline void mix_values(const C (&weights)[kHeads], int c, const uint4 (&values)[kGroup],
                                  DecodedHead<S, kChunks> (&decoded)[kHeads]) {
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    C value[kOf16Bytes<S>];
    widen(values[i], value, S());
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const C p = __shfl_sync(~0u, weights[h], i, kGroup);
#pragma unroll
      for (int e = 0; e < kOf16Bytes<S>; ++e) decoded[h].mixed[c][e] += p * value[e];
    }
  }
}

// Several softmaxes over different keys as one, in order: part i has stats (max, sum) and one channel of its mix.
template <class C>
struct DecodedParts {
  C max = -static_cast<C>(INFINITY), sum = 0, mixed = 0;

  template <class Stats, class Channel>
  __device__ DecodedParts(int parts, const Stats& stats, const Channel& channel) {
#pragma unroll 8
    for (int i = 0; i < parts; ++i) max = fmax(max, stats(i)[0]);
#pragma unroll 8
    for (int i = 0; i < parts; ++i) {
      const C factor = power_of_2(stats(i)[0] - finite_or_zero(max));
      sum += factor * stats(i)[1];
      mixed += factor * channel(i);
    }
  }
  __device__ C result() const { return sum == 0 ? C(0) : mixed / sum; }
};

}  // namespace strata::cuda
