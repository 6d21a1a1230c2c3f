// One decoding step of HKT attention on CUDA (HktDecode): bound by reading the cache once. The visible tokens of each
// sequence and key head are shared out among `splits` blocks, whose results a second kernel puts together in order. The
// query heads of a group share what is read. How many tokens there are is known on the device alone.
#include <algorithm>

#include "cuda/decode_tile.cuh"
#include "cuda/device.h"
#include "cuda/hkt_decode.h"
#include "cuda/launch.cuh"
#include "cuda/tile.cuh"
#include "cuda/views.h"

namespace strata::cuda {
namespace {

constexpr int kEveryRow = 1 << 30;  // slots of an array that is no ring

// Which tiles of which sequence a block has.
struct Share {
  int length, first;                 // visible tokens: first .. length - 1
  int first_tile, tiles, per_split;  // all tiles of 32 tokens that have a visible one; those of a block
  int splits;                        // blocks that have any

  __device__ Share(const HktDecode& d, int64_t batch, int all_splits) {
    length = static_cast<int>(d.lengths[batch]);
    first = d.window < 0 ? 0 : static_cast<int>(max(int64_t{0}, length - 1 - d.window));
    first_tile = first / kTileKeys;
    tiles = max(0, (length + kTileKeys - 1) / kTileKeys - first_tile);
    per_split = max(kDecodeWarps, (tiles + all_splits - 1) / all_splits);
    splits = (tiles + per_split - 1) / per_split;
  }
};

// Rows of one array of the cache.
template <class S, bool kAligned>
struct Ring {
  const S* data;
  int64_t stride, channel_stride;
  int slots;

  __device__ Ring(const ConstView& view, int64_t all_slots, int64_t batch, int64_t head)
      : data(static_cast<const S*>(view.data) + batch * view.stride[0] + head * view.stride[1]),
        stride(view.stride[2]),
        channel_stride(view.stride[3]),
        slots(all_slots == 0 ? kEveryRow : static_cast<int>(all_slots)) {}
  __device__ int slot(int row) const { return row < slots ? row : row % slots; }
  // Rows of a tile are neighbours; `begin` is the slot of the first.
  __device__ int slot_behind(int begin, int rows) const {
    return begin + rows < slots ? begin + rows : (begin + rows) % slots;
  }
  __device__ uint4 part(int slot, int channel, int channels, bool there) const {
    return load_part<S, kAligned>(data + slot * stride, channel_stride, channel, channels, there);
  }
};

// Scores of a tile, for the heads of one group. A coarse row is read and multiplied once.
template <class S, int kChunks, int kHeads, bool kAligned, int kDeep>
struct Scores {
  using C = typename ComputeOf<S>::Type;
  static constexpr int kChannels = kChunks * kChunkNumbers<S>;
  const HktDecode& d;
  int64_t batch, key_head;
  int length;
  const C* queries;  // (levels, kHeads, kChannels) in shared memory, multiplied by scale, weight and log2(e)

  // This lane's part of chunk c of those rows of a level that the group's tokens from `token` on have.
  template <int kRows>
  __device__ void load(int level, int token, int c, uint4 (&rows)[kRows]) const {
    const Ring<S, kAligned> ring(d.k[level], d.key_slots[level], batch, key_head);
    const int row = token >> level, begin = ring.slot(row);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      rows[i] = ring.part(ring.slot_behind(begin, i), first_channel<S>(c), d.head_size, (row + i) << level < length);
  }
  template <int kRows>
  __device__ void add(int level, int c, const uint4 (&rows)[kRows], C (&sums)[kHeads][kRows]) const {
    add_products<S>(rows, queries + level * kHeads * kChannels + first_channel<S>(c), kChannels, sums);
  }
  // Rows of levels 3 and more are those of all eight tokens of the group. Up to kDeep of them are loaded at a time.
  __device__ void add_deep_levels(int token, int c, C (&sums)[kHeads][1]) const {
#pragma unroll 1
    for (int first = 3; first < d.levels; first += kDeep) {
      uint4 rows[kDeep][1];
#pragma unroll
      for (int i = 0; i < kDeep; ++i) {
        if (first + i < d.levels) load(first + i, token, c, rows[i]);
      }
#pragma unroll
      for (int i = 0; i < kDeep; ++i) {
        if (first + i < d.levels) add(first + i, c, rows[i], sums);
      }
    }
  }
  // Sums of a level begin with those of the rows one level coarser, two rows with each.
  __device__ void operator()(int token, C (&scores)[kHeads]) const {
    C sums[kHeads][kGroup] = {};
#pragma unroll 2
    for (int c = 0; c < kChunks; ++c) {
      C one[kHeads][1] = {}, two[kHeads][2], four[kHeads][4];
      if constexpr (kDeep > 0) add_deep_levels(token, c, one);
      uint4 fine[kGroup], middle[4], coarse[2];
      load(0, token, c, fine);
      if (d.levels > 1) load(1, token, c, middle);
      if (d.levels > 2) load(2, token, c, coarse);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) two[h][0] = two[h][1] = one[h][0];
      if (d.levels > 2) add(2, c, coarse, two);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) four[h][i] = two[h][i / 2];
      }
      if (d.levels > 1) add(1, c, middle, four);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) sums[h][i] += four[h][i / 2];
      }
      add(0, c, fine, sums);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) scores[h] = own_sum(sums[h]);
  }
};

// Where the parts of a line, a query head of a sequence, are put together.
template <class C>
struct Parts {
  C* memory;
  int splits, channels;
  __device__ C* stats(int64_t line, int split) const { return memory + (line * splits + split) * (channels + 2); }
  __device__ C* mixed(int64_t line, int split) const { return stats(line, split) + 2; }
};

template <class S, int kChunks, int kHeads, bool kAligned>
__device__ void load_queries(const HktDecode& d, int64_t batch, int64_t first_head, int heads, int length,
                             typename ComputeOf<S>::Type* queries) {
  using C = typename ComputeOf<S>::Type;
  constexpr int kChannels = kChunks * kChunkNumbers<S>;
  for (int at = static_cast<int>(threadIdx.x); at < d.levels * kHeads * kChannels; at += kDecodeThreads) {
    const int c = at % kChannels, h = at / kChannels % kHeads, level = at / kChannels / kHeads;
    C number = 0;
    if (c < d.head_size && h < heads) {
      const Ring<S, kAligned> ring(d.q[level], max(int64_t{1}, d.query_slots[level]), batch, first_head + h);
      const int64_t slot = ring.slot(max(0, length - 1) >> level);
      const C weight = static_cast<const C*>(d.weights)[(first_head + h) * d.levels + level];
      number = static_cast<C>(ring.data[slot * ring.stride + c * ring.channel_stride]) *
               (static_cast<C>(d.scale) * weight * static_cast<C>(1.4426950408889634));
    }
    queries[at] = number;
  }
}

// A block has one split of one sequence and up to kHeads query heads of one key head.
template <class S, int kChunks, int kHeads, bool kAligned, int kDeep>
__global__ void __launch_bounds__(kDecodeThreads, decode_blocks(kChunks, kHeads, kDeep > 0))
    hkt_decode_kernel(const __grid_constant__ HktDecode d, Parts<typename ComputeOf<S>::Type> parts) {
  using C = typename ComputeOf<S>::Type;
  constexpr int kChannels = kChunks * kChunkNumbers<S>;
  extern __shared__ __align__(16) unsigned char memory[];
  C* const shared = reinterpret_cast<C*>(memory);
  const int key_heads = static_cast<int>(d.key_heads), group = static_cast<int>(d.heads) / key_heads;
  const int tiles_of_heads = (group + kHeads - 1) / kHeads, split = static_cast<int>(blockIdx.x) % parts.splits;
  const int item = static_cast<int>(blockIdx.x) / parts.splits, pair = item / tiles_of_heads;
  const int64_t batch = pair / key_heads, key_head = pair % key_heads;
  const int first_of_group = item % tiles_of_heads * kHeads, heads = min(kHeads, group - first_of_group);
  const int64_t first_head = key_head * group + first_of_group;
  const Share share(d, batch, parts.splits);
  if (split >= share.splits && split > 0) return;
  load_queries<S, kChunks, kHeads, kAligned>(d, batch, first_head, heads, share.length, shared);
  __syncthreads();

  const Scores<S, kChunks, kHeads, kAligned, kDeep> scores_of{d, batch, key_head, share.length, shared};
  const Ring<S, kAligned> values(d.v, d.value_slots, batch, key_head);
  DecodedHead<S, kChunks> decoded[kHeads];
  const int end = min(share.tiles, (split + 1) * share.per_split);
  for (int tile = split * share.per_split + warp_of_thread(); tile < end; tile += kDecodeWarps) {
    const int token = (share.first_tile + tile) * kTileKeys + group_of_lane() * kGroup, begin = values.slot(token);
    auto load_values = [&](int c, uint4(&rows)[kGroup]) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        rows[i] = values.part(values.slot_behind(begin, i), first_channel<S>(c), d.value_size,
                              token + i >= share.first && token + i < share.length);
    };
    uint4 rows[kGroup];
    if (kChunks == 1) load_values(0, rows);  // they arrive while scores are computed
    C weights[kHeads];
    scores_of(token, weights);
    const int own = token + place_in_group();
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      weights[h] = decoded[h].add(own >= share.first && own < share.length ? weights[h] : -static_cast<C>(INFINITY));
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (kChunks > 1) load_values(c, rows);
      mix_values(weights, c, rows, decoded);
    }
  }

  // The warps one after the other: (kDecodeWarps, kHeads) lines of two numbers and the channels.
  __syncthreads();
  constexpr int kLine = kChannels + 2;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    C* const line = shared + (warp_of_thread() * kHeads + h) * kLine;
    decoded[h].write(line, line + 2, d.value_size);
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < heads * d.value_size; at += kDecodeThreads) {
    const int h = at / d.value_size, channel = at % d.value_size;
    const int64_t line = batch * d.heads + first_head + h;
    auto stats = [&](int warp) { return shared + (warp * kHeads + h) * kLine; };
    const DecodedParts<C> all(kDecodeWarps, stats, [&](int warp) { return stats(warp)[2 + channel]; });
    if (share.splits <= 1) {
      padded_rows_of<S>(d.out, batch, first_head + h).at(0, channel) = static_cast<S>(all.result());
    } else {
      parts.mixed(line, split)[channel] = all.mixed;
      if (channel == 0) parts.stats(line, split)[0] = all.max, parts.stats(line, split)[1] = all.sum;
    }
  }
}

// The splits of a line, in order.
template <class S>
__global__ void __launch_bounds__(kDecodeThreads)
    hkt_decode_parts_kernel(const __grid_constant__ HktDecode d, Parts<typename ComputeOf<S>::Type> parts) {
  using C = typename ComputeOf<S>::Type;
  const int64_t line = blockIdx.x, batch = line / d.heads;
  const Share share(d, batch, parts.splits);
  if (share.splits <= 1) return;
  for (int channel = static_cast<int>(threadIdx.x); channel < d.value_size; channel += kDecodeThreads) {
    const DecodedParts<C> all(
        share.splits, [&](int split) { return parts.stats(line, split); },
        [&](int split) { return parts.mixed(line, split)[channel]; });
    padded_rows_of<S>(d.out, batch, line % d.heads).at(0, channel) = static_cast<S>(all.result());
  }
}

template <class S, int kChunks, int kHeads, bool kAligned, int kDeep>
cudaError_t launch(const HktDecode& d, void* workspace, cudaStream_t stream) {
  using C = typename ComputeOf<S>::Type;
  constexpr int kChannels = kChunks * kChunkNumbers<S>;
  const Parts<C> parts{static_cast<C*>(workspace), hkt_decode_splits(d), d.value_size};
  const int64_t tiles_of_heads = (d.heads / d.key_heads + kHeads - 1) / kHeads;
  const int64_t blocks = d.batch * d.key_heads * tiles_of_heads * parts.splits;
  const size_t queries = sizeof(C) * d.levels * kHeads * kChannels;
  const size_t lines = sizeof(C) * kDecodeWarps * kHeads * (kChannels + 2);
  hkt_decode_kernel<S, kChunks, kHeads, kAligned, kDeep>
      <<<blocks_for(blocks, 1), kDecodeThreads, std::max(queries, lines), stream>>>(d, parts);
  if (parts.splits > 1)
    hkt_decode_parts_kernel<S><<<blocks_for(d.batch * d.heads, 1), kDecodeThreads, 0, stream>>>(d, parts);
  return cudaGetLastError();
}

template <class S, int kChunks>
cudaError_t launch_aligned(const HktDecode& d, void* workspace, cudaStream_t stream) {
  // As many heads as registers have room for their values.
  constexpr int kNumbers = kChunks * kOf16Bytes<S>, kHeads = sizeof(S) == sizeof(double) ? 1 : kNumbers <= 16 ? 4 : 2;
  if (d.heads > d.key_heads) return launch<S, kChunks, kHeads, true, 1>(d, workspace, stream);
  return d.levels > 3 ? launch<S, kChunks, 1, true, 5>(d, workspace, stream)
                      : launch<S, kChunks, 1, true, 0>(d, workspace, stream);
}

template <class S>
cudaError_t launch_for(const HktDecode& d, void* workspace, cudaStream_t stream) {
  const int channels = std::max(d.head_size, d.value_size);
  constexpr int kWidest = kMaxHeadSize / kChunkNumbers<S>;
  bool aligned = is_aligned(d.v, d.value_size, sizeof(S));
  for (int l = 0; l < d.levels; ++l) aligned = aligned && is_aligned(d.k[l], d.head_size, sizeof(S));
  if (!aligned) return launch<S, kWidest, 1, false, 1>(d, workspace, stream);
  if (channels <= 64) return launch_aligned<S, kWidest / 4>(d, workspace, stream);
  if (channels <= 128) return launch_aligned<S, kWidest / 2>(d, workspace, stream);
  return launch_aligned<S, kWidest>(d, workspace, stream);
}

}  // namespace

cudaError_t hkt_decode_simt(const HktDecode& d, void* workspace, cudaStream_t stream) {
  return with_storage(d.dtype, [&](auto s) { return launch_for<decltype(s)>(d, workspace, stream); });
}

}  // namespace strata::cuda
