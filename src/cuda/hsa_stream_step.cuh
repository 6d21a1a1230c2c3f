// What a block of a decoding step of streaming attention knows (HsaStreamStep): the nodes that the new token sees, and
// how the token is added to the cache.
#pragma once

#include <cmath>

#include "cuda/decode_tile.cuh"
#include "cuda/divide.h"
#include "strata/hsa_stream.h"

namespace strata::cuda {

constexpr int kMaxHeights = 64;
constexpr int kCountBit = 40;  // of lengths: from this bit on the blocks that are done are counted during a step
constexpr double kLog2OfE = 1.4426950408889634;

// The step, with what the host can say of it in advance.
struct StepCall {
  HsaStreamStep s;
  int padded;  // channels of all levels, rounded up to whole chunks
  int width, ring;
  Divisor branching, nodes, head_tiles, key_heads, channels, level_channels, value_size;

  StepCall(const HsaStreamStep& step, int padded_, int64_t tiles)
      : s(step),
        padded(padded_),
        width(s.levels * s.head_size),
        ring(s.near * s.branching),
        branching(s.branching),
        nodes(ring),
        head_tiles(tiles),
        key_heads(s.key_heads),
        channels(padded),
        level_channels(s.head_size),
        value_size(s.value_size) {}
};

// Node numbers may be large, but hardly ever are.
__device__ inline int64_t quotient(const Divisor& d, int64_t x) {
  return x <= INT32_MAX ? d.quotient(static_cast<int>(x)) : x / d.value;
}
__device__ inline int remainder(const Divisor& d, int64_t x) { return static_cast<int>(x - quotient(d, x) * d.value); }

// The nodes of one height that the new token sees: neighbours, the first of a family first.
struct SeenNodes {
  int count = 0;
  int slot = 0;      // of the first node, within the ring of its height
  int distance = 0;  // families between that of the first node and that of the token's ancestor
  int place = 0;     // of the ancestor in its family

  SeenNodes() = default;
  __device__ SeenNodes(const StepCall& call, int64_t length, int height) {
    const int64_t n = call.s.near, b = call.s.branching;
    int64_t ancestor = length;
    for (int h = 0; h < height && ancestor > 0; ++h) ancestor = quotient(call.branching, ancestor);
    if (height > 0 && ancestor < n) return;
    const int64_t family = quotient(call.branching, ancestor), first_family = max(int64_t{0}, family - n + 1);
    const int64_t first = first_family * b, end = height == 0 ? ancestor : ancestor - n + 1;
    count = static_cast<int>(max(int64_t{0}, end - first));
    slot = remainder(call.nodes, first);
    distance = static_cast<int>(family - first_family);
    place = static_cast<int>(ancestor - family * b);
  }
};

// A sequence, a key head and some of its query heads.
template <class C>
struct StepBlock {
  const StepCall& call;
  const HsaStreamStep& s;
  int64_t batch, key_head, first_head, row;
  int heads;                           // of this block
  C *keys, *values, *kappas, *masses;  // of the sequence and key head
  C new_mass, new_kappa;

  __device__ StepBlock(const StepCall& step, int most_heads) : call(step), s(step.s) {
    const int group = static_cast<int>(s.heads / s.key_heads);
    row = call.head_tiles.quotient(static_cast<int>(blockIdx.x));
    const int first = call.head_tiles.remainder(static_cast<int>(blockIdx.x)) * most_heads;
    batch = call.key_heads.quotient(static_cast<int>(row)), key_head = row - batch * s.key_heads;
    heads = min(most_heads, group - first), first_head = key_head * group + first;
    const int64_t slots = s.capacity * call.ring;
    keys = static_cast<C*>(s.keys) + row * slots * call.width;
    values = static_cast<C*>(s.values) + row * slots * s.value_size;
    kappas = static_cast<C*>(s.kappas) + row * slots;
    masses = static_cast<C*>(s.masses) + batch * slots;
    new_mass = s.weight == nullptr ? C(1) : static_cast<const C*>(s.weight)[batch];
    new_kappa = s.key_bias == nullptr ? C(0) : static_cast<const C*>(s.key_bias)[row];
  }
  __device__ bool is_first_of_group() const { return call.head_tiles.remainder(static_cast<int>(blockIdx.x)) == 0; }
  __device__ C* out(int head) const {
    return static_cast<C*>(s.out) + (batch * s.heads + first_head + head) * s.value_size;
  }
  // Whether the next token has room; a full cache stays as it is, and the output becomes NaN.
  __device__ bool has_room(int64_t length) const {
    int64_t heights = 1;
    for (int64_t size = s.branching; size <= length + 1 && heights <= s.capacity; size *= s.branching) ++heights;
    return length >= 0 && heights <= s.capacity;
  }
  // The token's own entry, then those of the families that it completes: every thread has some of the channels. The
  // masses belong to all key heads; every thread sums those it needs, in the same order. token: new key and value.
  __device__ void append(int64_t length, const C* new_key, const C* new_value) const {
    const int b = s.branching, width = call.width, channels = width + s.value_size + 1;
    const int items = channels + (key_head == 0 ? 1 : 0);
    for (int item = static_cast<int>(threadIdx.x); item < items; item += kDecodeThreads) {
      auto place = [&](int64_t slot) -> C& {
        return item < width          ? keys[slot * width + item]
               : item < channels - 1 ? values[slot * s.value_size + item - width]
               : item < channels     ? kappas[slot]
                                     : masses[slot];
      };
      C number = item < width          ? new_key[item]
                 : item < channels - 1 ? new_value[item - width]
                 : item < channels     ? new_kappa
                                       : new_mass;
      C mass = new_mass;
      int64_t node = length;
      for (int64_t height = 0;; ++height) {
        place(height * call.ring + remainder(call.nodes, node)) = number;
        const int64_t parent = quotient(call.branching, node);
        if (node - parent * b != b - 1) break;
        // The family is complete. Its newest node may not be in memory yet.
        const int64_t family = height * call.ring + remainder(call.nodes, parent * b);
        C total = 0, mean = 0;
        for (int c = 0; c < b - 1; ++c) total += masses[family + c];
        total += mass;
        for (int c = 0; c < b - 1; ++c) {
          if (masses[family + c] > 0) mean += masses[family + c] / total * place(family + c);
        }
        if (mass > 0) mean += mass / total * number;
        number = item < channels ? mean : total;
        mass = total;
        node = parent;
      }
    }
  }
  // When all blocks of the sequence have read its length, it is one more.
  __device__ void count() const {
    auto* const length = reinterpret_cast<unsigned long long*>(s.lengths + batch);
    const unsigned long long blocks = s.key_heads * call.head_tiles.value, one = 1ull << kCountBit;
    const unsigned long long before = atomicAdd(length, one);
    if (before >> kCountBit == blocks - 1) atomicExch(length, (before & (one - 1)) + 1);
  }
  // Into shared memory: the queries, (kHeads, padded), multiplied by scale, weights and log2(e); the new key and value.
  template <int kHeads>
  __device__ void load(C* queries, C* new_key, C* new_value) const {
    const C factor = static_cast<C>(s.scale) * static_cast<C>(kLog2OfE);
    for (int at = static_cast<int>(threadIdx.x); at < kHeads * call.padded; at += kDecodeThreads) {
      const int h = call.channels.quotient(at), c = at - h * call.padded;
      C number = 0;
      if (h < heads && c < call.width) {
        number = factor * static_cast<const C*>(s.q)[(batch * s.heads + first_head + h) * call.width + c];
        if (s.level_weights != nullptr)
          number *=
              static_cast<const C*>(s.level_weights)[(first_head + h) * s.levels + call.level_channels.quotient(c)];
      }
      queries[at] = number;
    }
    for (int c = static_cast<int>(threadIdx.x); c < call.width; c += kDecodeThreads)
      new_key[c] = static_cast<const C*>(s.k)[row * call.width + c];
    for (int c = static_cast<int>(threadIdx.x); c < s.value_size; c += kDecodeThreads)
      new_value[c] = static_cast<const C*>(s.v)[row * s.value_size + c];
  }
};

// The entry of this lane in a tile: its slot, negative where there is none; what is added to its scores, without
// positions; and whether it is seen, which its mass says.
template <class C>
struct Entry {
  int slot = -1, height = 0, table = 0;  // table: where in the position table of a head and height
  C kappa = 0, mass = 0;

  __device__ Entry(const StepBlock<C>& block, const SeenNodes* seen, int entry, int entries) {
    if (entry >= entries) return;
    while (entry >= seen[height].count) entry -= seen[height++].count;
    int at = seen[height].slot + entry;
    if (at >= block.call.ring) at -= block.call.ring;
    slot = at + height * block.call.ring;
    mass = block.masses[slot];
    kappa = block.kappas[slot];
    const int family = block.call.branching.quotient(entry), b = block.s.branching;
    table = ((seen[height].distance - family) * b + seen[height].place) * b + entry - family * b;
  }
  __device__ bool is_seen() const { return mass > 0; }
  __device__ C bias() const { return static_cast<C>(kLog2OfE) * kappa + log2(mass); }
  __device__ C position(const HsaStreamStep& s, int64_t head) const {
    if (s.positions == nullptr || slot < 0 || height >= s.heights) return C(0);
    const int64_t size = static_cast<int64_t>(s.near) * s.branching * s.branching;
    return static_cast<C>(kLog2OfE) * static_cast<const C*>(s.positions)[(head * s.heights + height) * size + table];
  }
};

}  // namespace strata::cuda
