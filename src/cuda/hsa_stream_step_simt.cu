// One decoding step of streaming attention on CUDA (HsaStreamStep), one launch: a block has one sequence and up to
// kHeads query heads of one key head. It attends to the cache and adds the token to it. The slots that a token writes
// are those of nodes that it does not see, so no block waits for another; the last block of a sequence counts the
// token.
#include <algorithm>
#include <cmath>

#include "cuda/hsa_stream_kernels.h"
#include "cuda/hsa_stream_step.cuh"
#include "cuda/launch.cuh"

namespace strata::cuda {
namespace {

// A tile of 32 entries, of each of which a lane of the warp knows the slot.
template <class C, int kChunks, int kHeads, bool kAligned>
__device__ void see_tile(const StepBlock<C>& block, const Entry<C>& entry, const C* queries,
                         DecodedHead<C, kChunks> (&decoded)[kHeads]) {
  const HsaStreamStep& s = block.s;
  const int padded = block.call.padded;
  int slots[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) slots[i] = __shfl_sync(~0u, entry.slot, i, kGroup);
  auto load = [&](const C* rows, int channels, int c, uint4(&parts)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      parts[i] = load_part<C, kAligned>(rows + static_cast<int64_t>(max(0, slots[i])) * channels, 1,
                                        first_channel<C>(c), channels, slots[i] >= 0);
  };
  C sums[kHeads][kGroup] = {};
#pragma unroll 2
  for (int c = 0; c < padded / kChunkNumbers<C>; ++c) {
    uint4 keys[kGroup];
    load(block.keys, block.call.width, c, keys);
    add_products<C>(keys, queries + first_channel<C>(c), padded, sums);
  }
  C weights[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const C position = h < block.heads ? entry.position(s, block.first_head + h) : C(0);
    const C score = own_sum(sums[h]) + entry.bias() + position;
    weights[h] = decoded[h].add(entry.is_seen() ? score : -static_cast<C>(INFINITY));
  }
  // Hidden tokens may hold anything; those that are not there hold zeros.
  const unsigned seen = __ballot_sync(~0u, entry.is_seen() || entry.slot < 0) >> (group_of_lane() * kGroup);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    uint4 values[kGroup];
    load(block.values, s.value_size, c, values);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if ((seen >> i & 1) == 0) values[i] = {0, 0, 0, 0};
    }
    mix_values(weights, c, values, decoded);
  }
}

template <class C, int kChunks, int kHeads, bool kAligned>
__global__ void __launch_bounds__(kDecodeThreads, kChunks <= 2 && kHeads == 1 ? 4 : 1)
    stream_step_kernel(const __grid_constant__ StepCall call) {
  extern __shared__ __align__(16) unsigned char memory[];
  C* const shared = reinterpret_cast<C*>(memory);
  __shared__ SeenNodes seen[kMaxHeights];
  __shared__ C own_scores[kHeads];
  const HsaStreamStep& s = call.s;
  const StepBlock<C> block(call, kHeads);
  const int64_t stored = s.lengths[block.batch], length = stored < 0 ? -1 : stored & ((int64_t{1} << kCountBit) - 1);
  if (!block.has_room(length)) {
    for (int at = static_cast<int>(threadIdx.x); at < block.heads * s.value_size; at += kDecodeThreads)
      block.out(0)[at] = static_cast<C>(NAN);
    return;
  }
  C *const new_key = shared + kHeads * call.padded, *const new_value = new_key + call.width;
  C* const lines = new_value + s.value_size;
  block.template load<kHeads>(shared, new_key, new_value);
  const int heights = static_cast<int>(min(s.capacity, int64_t{kMaxHeights}));
  if (static_cast<int>(threadIdx.x) < heights)
    seen[threadIdx.x] = SeenNodes(call, length, static_cast<int>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x == 0) block.count();

  int entries = 0;
  for (int h = 0; h < heights; ++h) entries += seen[h].count;
  const int warp = warp_of_thread();
  DecodedHead<C, kChunks> decoded[kHeads];
  for (int tile = warp; tile * kTileKeys < entries; tile += kDecodeWarps) {
    const Entry<C> entry(block, seen, tile * kTileKeys + lane_of_thread(), entries);
    see_tile<C, kChunks, kHeads, kAligned>(block, entry, shared, decoded);
  }
  for (int h = warp; h < block.heads; h += kDecodeWarps) {
    C sum = 0;
    for (int c = lane_of_thread(); c < call.width; c += 32) sum += shared[h * call.padded + c] * new_key[c];
    sum = warp_sum(sum) + static_cast<C>(kLog2OfE) * block.new_kappa + log2(block.new_mass);
    if (lane_of_thread() == 0) own_scores[h] = block.new_mass > 0 ? sum : -static_cast<C>(INFINITY);
  }

  // The warps one after the other, (kDecodeWarps, kHeads) lines of two numbers and the channels, and the token itself.
  constexpr int kLine = kChunks * kChunkNumbers<C> + 2;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    C* const line = lines + (warp * kHeads + h) * kLine;
    decoded[h].write(line, line + 2, s.value_size);
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < block.heads * s.value_size; at += kDecodeThreads) {
    const int h = call.value_size.quotient(at), channel = at - h * s.value_size;
    const C own[2] = {own_scores[h], block.new_mass > 0 ? C(1) : C(0)};
    auto stats = [&](int part) -> const C* { return part == 0 ? own : lines + ((part - 1) * kHeads + h) * kLine; };
    const DecodedParts<C> all(kDecodeWarps + 1, stats, [&](int part) {
      return part > 0 ? stats(part)[2 + channel] : block.new_mass > 0 ? new_value[channel] : C(0);
    });
    block.out(h)[channel] = all.result();
  }
  if (block.is_first_of_group()) block.append(length, new_key, new_value);
}

template <class C, int kChunks, int kHeads, bool kAligned>
cudaError_t launch(const HsaStreamStep& s, cudaStream_t stream) {
  const int padded = (s.levels * s.head_size + kChunkNumbers<C> - 1) / kChunkNumbers<C> * kChunkNumbers<C>;
  const int64_t tiles = (s.heads / s.key_heads + kHeads - 1) / kHeads;
  const StepCall call(s, padded, tiles);
  const size_t numbers = static_cast<size_t>(kHeads) * padded + call.width + s.value_size +
                         kDecodeWarps * kHeads * (kChunks * kChunkNumbers<C> + 2);
  const auto kernel = stream_step_kernel<C, kChunks, kHeads, kAligned>;
  if (numbers * sizeof(C) > 48 * 1024) {
    if (const cudaError_t e = allow_shared_memory(kernel, static_cast<int>(numbers * sizeof(C))); e != cudaSuccess)
      return e;
  }
  kernel<<<blocks_for(s.batch * s.key_heads * tiles, 1), kDecodeThreads, numbers * sizeof(C), stream>>>(call);
  return cudaGetLastError();
}

template <class C, int kChunks>
cudaError_t launch_aligned(const HsaStreamStep& s, cudaStream_t stream) {
  constexpr int kHeads = sizeof(C) == sizeof(double) ? 1 : kChunks * kOf16Bytes<C> <= 16 ? 4 : 2;
  if (s.heads == s.key_heads) return launch<C, kChunks, 1, true>(s, stream);
  return launch<C, kChunks, kHeads, true>(s, stream);
}

template <class C>
cudaError_t launch_for(const HsaStreamStep& s, cudaStream_t stream) {
  constexpr int kWidest = kMaxHeadSize / kChunkNumbers<C>;
  auto aligned = [](const void* data, int64_t channels) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && channels % kOf16Bytes<C> == 0;
  };
  if (!aligned(s.keys, static_cast<int64_t>(s.levels) * s.head_size) || !aligned(s.values, s.value_size))
    return launch<C, kWidest, 1, false>(s, stream);
  if (s.value_size <= 64) return launch_aligned<C, kWidest / 4>(s, stream);
  if (s.value_size <= 128) return launch_aligned<C, kWidest / 2>(s, stream);
  return launch_aligned<C, kWidest>(s, stream);
}

}  // namespace

cudaError_t hsa_stream_step_simt(const HsaStreamStep& s, cudaStream_t stream) {
  return s.dtype == DType::kFloat64 ? launch_for<double>(s, stream) : launch_for<float>(s, stream);
}

}  // namespace strata::cuda
