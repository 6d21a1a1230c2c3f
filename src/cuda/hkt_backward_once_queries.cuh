// The reducer of the HKT backward that computes every score once (hkt_backward_once_sm90.cu): dQ and the coarse dK,
// from dS of 128 keys.
#pragma once

#include <cmath>

#include "cuda/hkt_backward_once_sm90.cuh"
#include "cuda/warp.cuh"

namespace strata::cuda {
namespace {

// 1024 x scale, rounded to an integer by additions: the special function unit, which converts numbers, is busy with
// exponentials. A float from 2^23 on has the integers as its last bits, here those of x scale and then those of what
// that rounds off. The bits of 2^23 itself cancel: 1024 kHigh + the bits of kLow is a multiple of 2^32.
constexpr float kLow = 12582912.0f, kHigh = kLow - (0x4b400000 >> 10);
__device__ inline int to_fixed(float x, float scale) {
  const float high = fmaf(x, scale, kHigh);
  const float low = fmaf(fmaf(x, scale, kHigh - high), 1024.0f, kLow);
  return static_cast<int>(__float_as_uint(high) * 1024u + __float_as_uint(low));
}
__device__ inline bool is_finite(float x) { return fabsf(x) < INFINITY; }

// What the reducer does with dS of the block's keys.
template <class T, int D, int kLevels>
struct Reducer {
  using M = OnceLayout<kLevels>;
  using Slots = SumSlots<kLevels>;
  [[maybe_unused]] static constexpr bool kCoarse = M::kCoarse, kPacked = M::kPacked;
  [[maybe_unused]] static constexpr int kUpperSteps = Slots::kUpperColumns / 16;

  const OnceArguments& a;
  const HktProblem& p;
  const WorkTile& work;
  const OnceBlock<kLevels>& block;
  int fine_tile, pair_tile, upper_tile;  // the first of the sequence, of the head's
  uint32_t own;
  int warp, lane, out_buffer = 0;
  const float *fine_scales, *pair_scales, *upper_scales, *last_scales;  // of this lane's rows
  int64_t head_tiles;
  bool odd_keys;                                                            // some key is not finite
  float level1[kCoarse ? D / 2 : 1] = {}, upper[kCoarse ? D / 2 : 1] = {};  // dK

  __device__ Reducer(const OnceArguments& arguments, const WorkTile& tile, const OnceBlock<kLevels>& memory, int wave)
      : a(arguments),
        p(arguments.p),
        work(tile),
        block(memory),
        fine_tile(once_first_tile(arguments.p, tile.batch)),
        own(memory.own_tiles(wave)),
        warp(__shfl_sync(~0u, warp_of_thread() % 4, 0)),  // known to be uniform
        lane(lane_of_thread()) {
    const int64_t key_line = work.batch * p.key_heads + work.first_head / (p.heads / p.key_heads);
    odd_keys = a.maxima[8 * key_line + kOddKeys] != 0;
    const OnceTiles tiles = once_tiles(p);
    pair_tile = tiles.fine + fine_tile / 2;
    upper_tile = tiles.fine + tiles.pairs + fine_tile / Slots::kUpperTiles;
  }

  __device__ void begin_head(int head) {
    const OnceTiles tiles = once_tiles(p);
    head_tiles = head * tiles.all();
    auto scales = [&](int level) {
      return a.scales + int64_t{head} * 128 * tiles.fine + once_level_begin(tiles.fine, level) +
             (64 >> level) * fine_tile;
    };
    const int g = lane / 4, share = warp / (4 / Slots::kUpperTiles);
    fine_scales = scales(0) + 8 * g + 2 * warp;
    pair_scales = scales(1) + 32 * (warp / 2) + 4 * g + warp % 2 * 2;
    upper_scales = scales(2) + 16 * share + 2 * g;
    if (!kPacked || warp % 2 == 0) return;
    upper_scales = scales(3) + 8 * share + g;
    last_scales = scales(4) + 4 * share + g / 2;
  }
  // Of this lane's two rows of a tile of the levels above the first.
  __device__ float2 upper_scale(int i) const {
    const int begin = i & ~(Slots::kUpperTiles - 1);
    if (kPacked && warp % 2 == 1) return {upper_scales[8 * begin], last_scales[4 * begin]};
    return *reinterpret_cast<const float2*>(upper_scales + 16 * begin);
  }

  // Adds 16 rows x D channels of this warp to the sums of dQ: tile `tile` of the head.
  __device__ void add_rows(const float (&x)[D / 2], float2 scale, int tile) {
    const int64_t at = head_tiles + tile;
    const uint32_t buffer = block.memory + M::kOut + out_buffer * 16384 + warp * 4096;
    out_buffer ^= 1;
    if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(buffer + 512 * n + 16 * lane),
                   "r"(to_fixed(x[4 * n], scale.x)), "r"(to_fixed(x[4 * n + 1], scale.x)),
                   "r"(to_fixed(x[4 * n + 2], scale.y)), "r"(to_fixed(x[4 * n + 3], scale.y))
                   : "memory");
    }
    // dS that is not finite shows in every channel, a key, or a product that overflows, in one.
    const bool all = odd_keys || fminf(scale.x, scale.y) < 0x1p-100f;
    if (all || !is_finite(x[0]) || !is_finite(x[2])) {
      bool finite[2] = {true, true};
#pragma unroll
      for (int i = 0; i < D / 2; ++i) finite[i / 2 % 2] &= is_finite(x[i]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!finite[half]) a.broken[at * 64 + 16 * warp + lane / 4 + 8 * half] = 1;
      }
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0)
      asm volatile(
          "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;\n"
          "cp.async.bulk.commit_group;" ::"l"(a.sums + (at * 64 + warp * 16) * D),
          "r"(buffer), "n"(64 * D)
          : "memory");
  }

  // acc = dS^T keys, over kSteps x 16 keys. Of the keys, groups of eight follow each other every `group` bytes.
  template <int kSteps>
  __device__ static void query_product(float (&acc)[D / 2], uint64_t sums, uint32_t keys, uint32_t group) {
    const uint64_t rows = smem_descriptor(keys, 16, group);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) {
      if (kk == 0) {
        wgmma_ss_columns_first(acc, sums, rows, T());
      } else {
        wgmma_ss_columns<true>(acc, further(sums, kk * 2048), further(rows, kk * 2 * group), 1, T());
      }
    }
  }

  // Tile i of the queries, as step `step`.
  __device__ void add_tile(int step, int i, const Slots& slots) {
    const uint64_t pair_sums = smem_descriptor(block.memory + M::kSums + (slots.pair & 1) * M::kTile),
                   upper_sums = smem_descriptor(block.memory + M::kUpperSums + (slots.upper & 1) * M::kTile);
    const bool ends_pair = kCoarse && Slots::ends_pair(i, work.last),
               ends_upper = kCoarse && p.levels > 2 && Slots::ends_upper(i, work.last);
    const float2 scale = *reinterpret_cast<const float2*>(fine_scales + 64 * i);
    float dq[D / 2];
    if constexpr (kCoarse) block.others().wait(step);
    block.gradients().wait(step);
    wgmma_fence();
    query_product<8>(dq, smem_descriptor(block.gradient_tiles(step)), own + M::kKeys, 1024);
    wgmma_commit();
    if constexpr (kCoarse) {
      const uint64_t queries = smem_descriptor(block.other_tile(step) + M::kCoarseTile);
#pragma unroll
      for (int kk = 0; kk < 2; ++kk)
        wgmma_ss_columns<false>(level1, further(pair_sums, (i & 1) * 64 + kk * 32), further(queries, kk * 2048), 1,
                                T());
#pragma unroll
      for (int kk = 0; kk < kUpperSteps; ++kk)
        wgmma_ss_columns<false>(upper,
                                further(upper_sums, (i & (Slots::kUpperTiles - 1)) * (32 * kUpperSteps) + kk * 32),
                                further(queries, (2 + kk) * 2048), 1, T());
      wgmma_commit();
    }
    wgmma_wait<kCoarse ? 1 : 0>();
    if constexpr (!kCoarse) block.gradients().release(step);
    add_rows(dq, scale, fine_tile + i);
    if constexpr (kCoarse) {
      wgmma_wait<0>();
      block.others().release(step);
      if (!ends_pair) {
        block.gradients().release(step);
        return;
      }
      const float2 scale1 = *reinterpret_cast<const float2*>(pair_scales + 64 * (i >> 1));
      wgmma_fence();
      query_product<4>(dq, pair_sums, own + M::kCoarseKeys, 2048);
      wgmma_commit();
      wgmma_wait<0>();
      if (!ends_upper) block.gradients().release(step);
      if (is_there((i & ~1) + warp / 2, i)) add_rows(dq, scale1, pair_tile + i / 2);
      if (!ends_upper) return;
      const float2 scale2 = upper_scale(i);
      wgmma_fence();
      query_product<4>(dq, upper_sums, own + M::kCoarseKeys + 1024, 2048);
      wgmma_commit();
      wgmma_wait<0>();
      block.gradients().release(step);
      constexpr int kShare = Slots::kUpperTiles;
      if (is_there((i & ~(kShare - 1)) + warp / (4 / kShare), i)) add_rows(dq, scale2, upper_tile + i / kShare);
    }
  }
  // Whether a query tile that shares a buffer of sums has been there when tile i is.
  __device__ bool is_there(int tile, int i) const { return tile >= work.first && tile <= i; }

  __device__ void next_head(const float* weights) {
    if constexpr (kCoarse) {
      const float factor = next_head_factor(weights, p.levels, 1);
      const float above = upper_level() < p.levels ? next_head_factor(weights, p.levels, upper_level()) : 0.0f;
#pragma unroll
      for (int i = 0; i < D / 2; ++i) {
        level1[i] *= factor;
        upper[i] *= above;
      }
    }
  }
  // The level of this lane's rows of `upper`; of eight, four are of level 2, two of level 3 and one of level 4.
  __device__ int upper_level() const { return kPacked ? 1 + packed_level(8 + lane / 4) : 2; }

  // The coarse dK, through the tiles of the coarse keys.
  __device__ void store() {
    if constexpr (kCoarse) {
      const uint32_t tile = own + M::kCoarseKeys;
      const int key_head = work.first_head / static_cast<int>(p.heads / p.key_heads);
      const int tokens = work.limits.key_rows(p);
      if constexpr (!kPacked) {  // both halves of a row of level 2
#pragma unroll
        for (int i = 0; i < D / 2; ++i) upper[i] += __shfl_xor_sync(~0u, upper[i], 4);
      }
      stage_rows<T, D>(tile, last_head_factor(p, work, 1), [&](int i) { return level1[i]; });
      stage_rows<T, D>(tile + M::kTile, last_head_factor(p, work, upper_level()), [&](int i) { return upper[i]; });
      __syncwarp();
      auto rows_to = [&](int l) { return rows_of<T>(a.g.dk[l], work.batch, key_head); };
      store_rows<D>(tile, rows_to(1), p.head_size, [&](int slot) {
        const int at = work.own_first / 2 + slot;
        return at < level_rows(tokens, 1) ? at : -1;
      });
#pragma unroll 1
      for (int l = 2; l < p.levels; ++l)
        store_rows<D>(tile + M::kTile, rows_to(l), p.head_size, [&](int slot) {
          if (!kPacked) {
            const int at = work.own_first / 4 + slot / 2;
            return slot % 2 == 0 && at < level_rows(tokens, 2) ? at : -1;
          }
          const int packed = slot / 8 * 16 + 8 + slot % 8, at = (work.own_first >> l) + packed_row(packed);
          return packed_level(packed) + 1 == l && at < level_rows(tokens, l) ? at : -1;
        });
    }
  }
};

template <class T, int D, int kLevels>
__device__ void reduce_once(const OnceArguments& a, const OnceBlock<kLevels>& block) {
  const HktProblem& p = a.p;
  WorkTile work;
  SumSlots<kLevels> slots;
  for (int wave = 0, step = 0; next_work_tile<true>(p, wave, &work); ++wave) {
    Reducer<T, D, kLevels> reducer(a, work, block, wave);
    block.own().wait(wave);
    for (int head = work.first_head; head < work.first_head + work.heads; ++head) {
      reducer.begin_head(head);
      if (head > work.first_head) reducer.next_head(static_cast<const float*>(p.weights) + head * p.levels);
      for (int i = work.first; i < work.last; ++i, ++step) {
        reducer.add_tile(step, i, slots);
        slots.next(i, work.last);
      }
    }
    warpgroup_sync(3);
    reducer.store();
    block.own().release(wave);
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace
}  // namespace strata::cuda
