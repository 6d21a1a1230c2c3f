// HKT backward on Hopper (sm_90a) for heads of up to 64 channels: every score is computed once. A block owns 128 keys
// and goes through tiles of 64 queries. Two consumer warpgroups, of 64 keys each, compute P and dS in registers, where
// they are the left operands of dV and dK; dS also goes to shared memory, with its sums over the blocks of the coarse
// levels. There a third warpgroup, the reducer, multiplies it with the keys: dQ of the tile, over the block's keys, and
// the coarse dK.
//
// dQ is summed over blocks in fixed point, an int32 with a power of two for each row, by bulk reductions from shared
// memory. Sums of integers do not depend on their order, so that results are the same bits from run to run. No sum
// overflows, because |dQ_ic| <= (2 |dO_i| max_j |v_j| + |dlse_i|) max_j |k_jc|, and the powers are chosen by that bound
// (hkt_backward_once_rows.cu).
//
// Rows and columns of the tiles have the orders of hkt_backward_sm90.cu.
#ifndef RP
#define RP 40
#endif
#ifndef STC
#define STC 3
#define OWNC 1
#endif
#ifndef RR
#define RR 136
#define RC 168
#define RR1 72
#define RC1 200
#endif
#include <cmath>

#include "cuda/device.h"
#include "cuda/hkt_backward_once_sm90.cuh"
#include "cuda/hkt_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/storage.h"
#include "cuda/warp.cuh"

namespace strata::cuda {
namespace {

// Rows in shared memory are given by their descriptors (wgmma.cuh), 64 channels each.
// acc += left x rows.
template <class T>
__device__ inline void gradient_product(float (&acc)[32], const uint32_t (&left)[4][4], uint64_t rows) {
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) wgmma_rs(acc, left[kk], further(rows, kk * 16 * 128), T());
}
// acc = left rows x rows.
template <class T>
__device__ inline void row_product(float (&acc)[32], const uint32_t (&left)[4][4], uint64_t rows) {
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) {
    if (kk == 0) {
      wgmma_rs_rows_first(acc, left[0], rows, T());
    } else {
      wgmma_rs_rows(acc, left[kk], further(rows, kk * 32), 1, T());
    }
  }
}
template <class T, int kCount>
__device__ inline void row_product(float (&acc)[kCount], uint64_t left, uint64_t rows) {
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) {
    if (kk == 0) {
      wgmma_ss_first(acc, left, rows, T());
    } else {
      wgmma_ss(acc, further(left, kk * 32), further(rows, kk * 32), 1, T());
    }
  }
}
template <class T>
__device__ inline void to_operand(uint32_t (&packed)[4][4], const float (&x)[kScores]) {
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
    for (int r = 0; r < 4; ++r) packed[kk][r] = pack(x[8 * kk + 2 * r], x[8 * kk + 2 * r + 1], T());
  }
}
__device__ inline float2 load_pair(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
  return x;
}
// A weight of zero counts as 2^-60, where weights are divided.
__device__ inline float safe_weight(float a) { return copysignf(fmaxf(fabsf(a), 8.7e-19f), a); }

// What a consumer warpgroup does with its 64 keys.
template <class T, int kLevels>
struct KeyConsumer {
  using M = OnceLayout<kLevels>;
  static constexpr bool kCoarse = M::kCoarse, kPacked = M::kPacked, kOperands = !kCoarse;

  const OnceArguments& a;
  const HktProblem& p;
  const WorkTile& work;
  uint32_t own;
  uint64_t own_rows;
  int group, warp, lane, own_first;
  float keys[32] = {}, values[32] = {};
  uint32_t key_operand[kOperands ? 4 : 1][4], value_operand[kOperands ? 4 : 1][4];

  __device__ KeyConsumer(const OnceArguments& arguments, const WorkTile& tile, uint32_t own_tiles, int my_group)
      : a(arguments),
        p(arguments.p),
        work(tile),
        own(own_tiles),
        own_rows(smem_descriptor(own_tiles + my_group * M::kTile)),
        group(my_group),
        warp(warp_of_thread() % 4),
        lane(lane_of_thread()),
        own_first(tile.own_first + 64 * my_group) {
    if constexpr (kOperands) {
      load_operand(key_operand, own + M::kKeys + group * M::kTile);
      load_operand(value_operand, own + M::kValues + group * M::kTile);
    }
  }
  __device__ void load_operand(uint32_t (&operand)[4][4], uint32_t tile) const {
    const uint32_t at = tile + panel_offset(64, 16 * warp + lane % 16, lane / 16);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) ldmatrix(operand[kk], at ^ (kk << 5));
  }

  // Levels 2 to 4 from their packed product, at the resolution and with the weight of level 2: by product tile, column.
  template <int kCount>
  __device__ static void unpack_levels(float (&level2)[2][2], const float (&packed)[kCount], const LevelWeights& w) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float level4 = __shfl_sync(~0u, packed[7 * 4 + 2 + e], packed_lane(3)) * w.down[3];
      const float above = (__shfl_sync(~0u, packed[6 * 4 + 2 + e], packed_lane(2)) + level4) * w.down[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) level2[n][e] = __shfl_sync(~0u, packed[(4 + n) * 4 + 2 + e], packed_lane(1)) + above;
    }
  }

  // Zeros what is masked, which may hold anything.
  __device__ void mask(float (&x)[kScores], int other_first) const {
    const int limit = work.limit;
    const bool edge = other_first + kOther > limit || own_first + 64 > limit ||
                      (p.causal && own_first + 64 > other_first + 1);
    if (!edge) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = other_first + key_of_slot<kTiles>(n, 2 * (lane % 4) + i % 2);
        const int key = own_first + paired_row(warp * 16 + lane / 4 + 8 * (i / 2));
        if (key < limit && query < limit && !(p.causal && key > query)) continue;
        x[4 * n + i] = 0;
      }
    }
  }

  // dS and its coarse sums into shared memory, as rows of keys.
  __device__ void store_gradients(const uint32_t (&left)[4][4], const float (&ds)[kScores],
                                  const OnceBlock<kLevels>& block, int step, int tile,
                                  const SumSlots<kLevels>& slots) const {
    const uint32_t to = block.gradient_tiles(step) + group * M::kTile +
                        panel_offset(64, 16 * warp + lane % 16, lane / 16);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) stmatrix(to ^ (kk << 5), left[kk][0], left[kk][1], left[kk][2], left[kk][3]);
    if constexpr (kCoarse) {
      float sums[4][2];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          sums[m][e] = (ds[8 * m + e] + ds[8 * m + 2 + e]) + (ds[8 * m + 4 + e] + ds[8 * m + 6 + e]);
      }
      const int row = 32 * group + 8 * warp + lane % 8;
      const uint32_t level1 = block.memory + M::kSums + (slots.pair & 1) * M::kTile,
                     upper = block.memory + M::kUpperSums + (slots.upper & 1) * M::kTile;
      stmatrix(level1 + panel_offset(64, row, (tile & 1) * 4 + lane / 8), pack(sums[0][0], sums[0][1], T()),
               pack(sums[1][0], sums[1][1], T()), pack(sums[2][0], sums[2][1], T()),
               pack(sums[3][0], sums[3][1], T()));
      if constexpr (kPacked) {
        store_packed(upper + panel_offset(64, row, (tile & 1) * 4 + lane / 8), sums);
      } else {  // half of the sum of level 2; its other half is in the neighbouring row
        stmatrix(upper + panel_offset(64, row, (tile & 3) * 2 + lane / 8 % 2),
                 pack(sums[0][0] + sums[1][0], sums[0][1] + sums[1][1], T()),
                 pack(sums[2][0] + sums[3][0], sums[2][1] + sums[3][1], T()));
      }
    }
  }
  // Rows of levels 2 to 4 as packed_lane() reads them. Columns: 16 of level 2, 8 of level 3 and 8 of level 4.
  __device__ void store_packed(uint32_t to, const float (&sums)[4][2]) const {
    const int g = lane / 4;
    float level2[2][2], level3[2], level4[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        level2[m][e] = sums[2 * m][e] + sums[2 * m + 1][e];
        level2[m][e] += __shfl_xor_sync(~0u, level2[m][e], 4);
      }
      level3[e] = level2[0][e] + level2[1][e];
      level3[e] += __shfl_xor_sync(~0u, level3[e], 8);
      level4[e] = level3[e] + __shfl_xor_sync(~0u, level3[e], 16);
      // From a lane whose rows have that row to the one that has its slot: rows 0 .. 3 of level 2, 0 and 1 of level 3.
#pragma unroll
      for (int m = 0; m < 2; ++m) level2[m][e] = __shfl_sync(~0u, level2[m][e], (2 * g) % 8 * 4 + lane % 4);
      level3[e] = __shfl_sync(~0u, level3[e], (4 * g) % 8 * 4 + lane % 4);
    }
    stmatrix(to, g < 4 ? pack(level2[0][0], level2[0][1], T()) : 0u, g < 4 ? pack(level2[1][0], level2[1][1], T()) : 0u,
             g == 4 || g == 5 ? pack(level3[0], level3[1], T()) : 0u, g == 6 ? pack(level4[0], level4[1], T()) : 0u);
  }

  // Scores of the coarse levels, at the resolution of level 1, with the weight of level 0.
  __device__ static void mix_levels(float (&coarse)[4][2], const float (&above)[M::kCoarseRows / 2],
                                    const LevelWeights& w) {
    float level2[2][2];
    if constexpr (kPacked) unpack_levels(level2, above, w);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        coarse[m][e] = above[4 * m + e] + (kPacked ? level2[m / 2][e] : above[(4 + m / 2) * 4 + 2 + e]) * w.down[1];
    }
  }

  // s becomes the scores, of which those of the coarse levels are in `coarse`; dp is begun, and is what is left to wait
  // for.
  __device__ void products(float (&s)[kScores], float (&dp)[kScores], float (&coarse)[4][2], float2 (&lse)[kTiles],
                           uint64_t queries, uint32_t numbers, const LevelWeights& w) const {
    wgmma_fence();
    if constexpr (kCoarse) {
      float above[M::kCoarseRows / 2];
      row_product<T>(above, further(own_rows, M::kCoarseKeys), further(queries, M::kCoarseTile));
      wgmma_commit();
      wgmma_wait<0>();
      mix_levels(coarse, above, w);
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = coarse[i / 8][i % 2] * w.down[0];
      wgmma_fence();
    }
    if constexpr (kOperands) {
      row_product<T>(s, key_operand, queries);
      wgmma_commit();
      row_product<T>(dp, value_operand, further(queries, M::kExtra));
    } else {
#pragma unroll
      for (int kk = 0; kk < 4; ++kk)
        wgmma_ss(s, further(own_rows, M::kKeys + kk * 32), further(queries, kk * 32), 1, T());
      wgmma_commit();
      row_product<T>(dp, further(own_rows, M::kValues), further(queries, M::kExtra));
    }
    wgmma_commit();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) lse[n] = load_pair(numbers + 32 * n);
    wgmma_wait<1>();
  }

  // One tile of queries.
  __device__ void add_tile(const OnceBlock<kLevels>& block, int step, int i, const LevelWeights& w,
                           const SumSlots<kLevels>& slots) {
    float s[kScores], dp[kScores], coarse[4][2];
    uint32_t left[4][4], left_values[4][4];
    const uint32_t numbers = block.numbers(step) + 8 * (lane % 4);
    const uint64_t queries = smem_descriptor(block.other_tile(step));
    float2 lse[kTiles], delta[kTiles];
    products(s, dp, coarse, lse, queries, numbers, w);
    const float full_scale = w.finest * static_cast<float>(p.scale) * kLog2e, coarse_scale = full_scale * w.down[0];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float start = -(e ? lse[n].y : lse[n].x);
        s[4 * n + e] = fast_exp2(s[4 * n + e] * full_scale + start);
        s[4 * n + 2 + e] = fast_exp2(s[4 * n + 2 + e] * full_scale + start);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) delta[n] = load_pair(numbers + 256 + 32 * n);
    mask(s, i * kOther);
    if constexpr (!kCoarse) {  // dV meanwhile; with coarse levels there are no registers for that
      to_operand<T>(left_values, s);
      wgmma_fence();
      gradient_product<T>(values, left_values, further(queries, M::kExtra));
      wgmma_commit();
    }
    wgmma_wait<kCoarse ? 0 : 1>();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[4 * n + e] = s[4 * n + e] * (dp[4 * n + e] - (e % 2 ? delta[n].y : delta[n].x));
    }
    mask(dp, i * kOther);
    if constexpr (kCoarse) to_operand<T>(left_values, s);
    to_operand<T>(left, dp);
    wgmma_fence();
    if constexpr (kCoarse) gradient_product<T>(values, left_values, further(queries, M::kExtra));
    gradient_product<T>(keys, left, queries);
    wgmma_commit();
    const auto gradients = block.gradients();
    if (step >= 2) mbarrier_wait(gradients.empty(step), (step / 2 - 1) & 1);
    store_gradients(left, dp, block, step, i, slots);
    fence_proxy_async();
    mbarrier_arrive(gradients.full(step));
    wgmma_wait<0>();
  }

  // Results go out through the tile of the values, which are in registers.
  __device__ void store(float key_factor) const {
    const uint32_t tile = own + M::kValues + group * M::kTile;
    const int tokens = static_cast<int>(p.tokens), head = work.first_head / static_cast<int>(p.heads / p.key_heads);
    auto row = [&](int slot) {
      const int at = own_first + paired_row(slot);
      return at < tokens ? at : -1;
    };
    stage_rows<T, kD>(tile, 1.0f, [&](int i) { return values[i]; });
    __syncwarp();
    store_rows<kD>(tile, rows_of<T>(a.g.dv, work.batch, head), p.value_size, row);
    __syncwarp();
    stage_rows<T, kD>(tile, key_factor, [&](int i) { return keys[i]; });
    __syncwarp();
    store_rows<kD>(tile, rows_of<T>(a.g.dk[0], work.batch, head), p.head_size, row);
  }
};

// The factor that takes sums over the heads before `head` to its own weight, and the one that ends the last head.
__device__ inline float next_head_factor(const float* weights, int levels, int level) {
  return safe_weight(weights[level - levels]) / safe_weight(weights[level]);
}
__device__ inline float last_head_factor(const HktProblem& p, const WorkTile& work, int level) {
  if (level >= p.levels) return 0.0f;
  const float weight =
      static_cast<const float*>(p.weights)[(work.first_head + work.heads - 1) * p.levels + level];
  return static_cast<float>(p.scale) * (work.heads == 1 ? weight : safe_weight(weight));
}

template <class T, int kLevels>
__device__ void consume_once(const OnceArguments& a, const OnceBlock<kLevels>& block) {
  const HktProblem& p = a.p;
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 2, 0);  // known to be uniform
  WorkTile work;
  SumSlots<kLevels> slots;
  for (int wave = 0, step = 0; next_work_tile<true>(p, wave, &work); ++wave) {
    block.own().wait(wave);
    KeyConsumer<T, kLevels> consumer(a, work, block.own_tiles(wave), group);
    for (int head = work.first_head; head < work.first_head + work.heads; ++head) {
      const float* weights = static_cast<const float*>(p.weights) + head * p.levels;
      const LevelWeights w = level_weights(weights, p.levels);
      if (head > work.first_head) {
        const float factor = next_head_factor(weights, p.levels, 0);
#pragma unroll
        for (int i = 0; i < 32; ++i) consumer.keys[i] *= factor;
      }
      for (int i = work.first; i < work.last; ++i, ++step) {
        block.others().wait(step);
        consumer.add_tile(block, step, i, w, slots);
        slots.next(i, work.last);
        block.others().release(step);
      }
    }
    warpgroup_sync(1 + group);
    consumer.store(last_head_factor(p, work, 0));
    block.own().release(wave);
  }
}

// 1024 x scale, rounded to an integer by additions: the special function unit, which converts numbers, is busy with
// exponentials. A float from 2^23 on has the integers as its last bits, here those of x scale and then those of what
// that rounds off. The bits of 2^23 itself cancel: 1024 kHigh + the bits of kLow is a multiple of 2^32.
// range: gets other bits of kExponent where x is not finite.
constexpr float kLow = 12582912.0f, kHigh = kLow - (0x4b400000 >> 10);
constexpr uint32_t kExponent = 0xff800000u;
__device__ inline int to_fixed(float x, float scale, uint32_t& range) {
  const float high = fmaf(x, scale, kHigh);
  const float low = fmaf(fmaf(x, scale, kHigh - high), 1024.0f, kLow);
  range |= __float_as_uint(high) ^ 0x4b000000u;
  return static_cast<int>(__float_as_uint(high) * 1024u + __float_as_uint(low));
}

// What the reducer does with dS of the block's keys.
template <class T, int kLevels>
struct Reducer {
  using M = OnceLayout<kLevels>;
  using Slots = SumSlots<kLevels>;
  static constexpr bool kCoarse = M::kCoarse, kPacked = M::kPacked;
  static constexpr int kUpperSteps = Slots::kUpperColumns / 16;

  const OnceArguments& a;
  const HktProblem& p;
  const WorkTile& work;
  const OnceBlock<kLevels>& block;
  const OnceTiles tiles;
  uint32_t own;
  int warp, lane, out_buffer = 0;
  const float *fine_scales, *pair_scales, *upper_scales, *last_scales;  // of this lane's rows
  int64_t head_tiles;
  float level1[kCoarse ? 32 : 1] = {}, upper[kCoarse ? 32 : 1] = {};  // dK

  __device__ Reducer(const OnceArguments& arguments, const WorkTile& tile, const OnceBlock<kLevels>& memory, int wave)
      : a(arguments),
        p(arguments.p),
        work(tile),
        block(memory),
        tiles(once_tiles(arguments.p.tokens, arguments.p.levels)),
        own(memory.own_tiles(wave)),
        warp(__shfl_sync(~0u, warp_of_thread() % 4, 0)),  // known to be uniform
        lane(lane_of_thread()) {}

  __device__ void begin_head(int head) {
    const int64_t line = static_cast<int64_t>(work.batch) * p.heads + head;
    head_tiles = line * tiles.all();
    const float* const scales = a.scales + line * 128 * tiles.fine;
    const int g = lane / 4, share = warp / (4 / Slots::kUpperTiles);
    fine_scales = scales + 8 * g + 2 * warp;
    pair_scales = scales + once_level_begin(tiles.fine, 1) + 32 * (warp / 2) + 4 * g + warp % 2 * 2;
    upper_scales = scales + once_level_begin(tiles.fine, 2) + 16 * share + 2 * g;
    if (!kPacked || warp % 2 == 0) return;
    upper_scales = scales + once_level_begin(tiles.fine, 3) + 8 * share + g;
    last_scales = scales + once_level_begin(tiles.fine, 4) + 4 * share + g / 2;
  }
  // Of this lane's two rows of a tile of the levels above the first.
  __device__ float2 upper_scale(int i) const {
    const int first = i & ~(Slots::kUpperTiles - 1);
    if (kPacked && warp % 2 == 1) return {upper_scales[8 * first], last_scales[4 * first]};
    return *reinterpret_cast<const float2*>(upper_scales + 16 * first);
  }

  // Adds 16 rows x 64 channels of this warp to the sums of dQ: tile `tile` of the head.
  __device__ void add_rows(const float (&x)[32], float2 scale, int tile) {
    const int64_t at = head_tiles + tile;
    const uint32_t buffer = block.memory + M::kOut + out_buffer * 16384 + warp * 4096;
    if (M::kOutBuffers == 2) out_buffer ^= 1;
    if (lane == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(M::kOutBuffers - 1) : "memory");
    __syncwarp();
    uint32_t ranges[2] = {};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int x0 = to_fixed(x[4 * n], scale.x, ranges[0]), x1 = to_fixed(x[4 * n + 1], scale.x, ranges[0]),
                y0 = to_fixed(x[4 * n + 2], scale.y, ranges[1]), y1 = to_fixed(x[4 * n + 3], scale.y, ranges[1]);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(buffer + 512 * n + 16 * lane), "r"(x0), "r"(x1),
                   "r"(y0), "r"(y1)
                   : "memory");
    }
    if (((ranges[0] | ranges[1]) & kExponent) != 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if ((ranges[half] & kExponent) != 0) a.broken[at * 64 + 16 * warp + lane / 4 + 8 * half] = 1;
      }
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0)
      asm volatile(
          "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 4096;\n"
          "cp.async.bulk.commit_group;" ::"l"(a.sums + at * 4096 + warp * 1024),
          "r"(buffer)
          : "memory");
  }

  // acc = dS^T keys, over kSteps x 16 keys. Of the keys, groups of eight follow each other every `group` bytes.
  template <int kSteps>
  __device__ static void query_product(float (&acc)[32], uint64_t sums, uint32_t keys, uint32_t group) {
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
    float dq[32];
    if constexpr (kCoarse) block.others().wait(step);
    block.gradients().wait(step);
    wgmma_fence();
    if constexpr (kCoarse) {
      const uint64_t queries = smem_descriptor(block.other_tile(step) + M::kCoarseTile);
#pragma unroll
      for (int kk = 0; kk < 2; ++kk)
        wgmma_ss_columns<false>(level1, further(pair_sums, (i & 1) * 64 + kk * 32), further(queries, kk * 2048), 1, T());
#pragma unroll
      for (int kk = 0; kk < kUpperSteps; ++kk)
        wgmma_ss_columns<false>(upper, further(upper_sums, (i & (Slots::kUpperTiles - 1)) * (32 * kUpperSteps) + kk * 32),
                                further(queries, (2 + kk) * 2048), 1, T());
      wgmma_commit();
    }
    query_product<8>(dq, smem_descriptor(block.gradient_tiles(step)), own + M::kKeys, 1024);
    wgmma_commit();
    if constexpr (kCoarse) {
      wgmma_wait<1>();
      block.others().release(step);
    }
    wgmma_wait<0>();
    if (!ends_pair) block.gradients().release(step);
    add_rows(dq, scale, i);
    if constexpr (kCoarse) {
      if (!ends_pair) return;
      const float2 scale1 = *reinterpret_cast<const float2*>(pair_scales + 64 * (i >> 1));
      wgmma_fence();
      query_product<4>(dq, pair_sums, own + M::kCoarseKeys, 2048);
      wgmma_commit();
      wgmma_wait<0>();
      if (!ends_upper) block.gradients().release(step);
      if (is_there((i & ~1) + warp / 2, i)) add_rows(dq, scale1, tiles.fine + i / 2);
      if (!ends_upper) return;
      const float2 scale2 = upper_scale(i);
      wgmma_fence();
      query_product<4>(dq, upper_sums, own + M::kCoarseKeys + 1024, 2048);
      wgmma_commit();
      wgmma_wait<0>();
      block.gradients().release(step);
      constexpr int kShare = Slots::kUpperTiles;
      if (is_there((i & ~(kShare - 1)) + warp / (4 / kShare), i))
        add_rows(dq, scale2, tiles.fine + tiles.pairs + i / kShare);
    }
  }
  // Whether a query tile that shares a buffer of sums has been there when tile i is.
  __device__ bool is_there(int tile, int i) const { return tile >= work.first && tile <= i; }

  __device__ void next_head(const float* weights) {
    if constexpr (kCoarse) {
      const float factors[2] = {next_head_factor(weights, p.levels, 1), 0};
#pragma unroll
      for (int i = 0; i < 32; ++i) level1[i] *= factors[0];
      float above[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        above[half] = upper_level(half) < p.levels ? next_head_factor(weights, p.levels, upper_level(half)) : 0.0f;
#pragma unroll
      for (int i = 0; i < 32; ++i) upper[i] *= above[i / 2 % 2];
    }
  }
  // The level of this lane's rows of `upper`; of eight, four are of level 2, two of level 3 and one of level 4.
  __device__ int upper_level(int) const { return kPacked ? 1 + packed_level(8 + lane / 4) : 2; }

  // The coarse dK, through the tiles of the coarse keys.
  __device__ void store() {
    if constexpr (kCoarse) {
      const uint32_t tile = own + M::kCoarseKeys;
      const int key_head = work.first_head / static_cast<int>(p.heads / p.key_heads);
      const int tokens = static_cast<int>(p.tokens);
      if constexpr (!kPacked) {  // both halves of a row of level 2
#pragma unroll
        for (int i = 0; i < 32; ++i) upper[i] += __shfl_xor_sync(~0u, upper[i], 4);
      }
      stage_rows<T, kD>(tile, last_head_factor(p, work, 1), [&](int i) { return level1[i]; });
      stage_rows<T, kD>(tile + M::kTile, last_head_factor(p, work, upper_level(0)), [&](int i) { return upper[i]; });
      __syncwarp();
      auto rows_to = [&](int l) { return rows_of<T>(a.g.dk[l], work.batch, key_head); };
      store_rows<kD>(tile, rows_to(1), p.head_size, [&](int slot) {
        const int at = work.own_first / 2 + slot;
        return at < level_rows(tokens, 1) ? at : -1;
      });
#pragma unroll 1
      for (int l = 2; l < p.levels; ++l)
        store_rows<kD>(tile + M::kTile, rows_to(l), p.head_size, [&](int slot) {
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

template <class T, int kLevels>
__device__ void reduce_once(const OnceArguments& a, const OnceBlock<kLevels>& block) {
  const HktProblem& p = a.p;
  WorkTile work;
  SumSlots<kLevels> slots;
  for (int wave = 0, step = 0; next_work_tile<true>(p, wave, &work); ++wave) {
    Reducer<T, kLevels> reducer(a, work, block, wave);
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

template <class T, int kLevels>
__global__ void __launch_bounds__(kOnceThreads, 1) hkt_backward_once_kernel(const __grid_constant__ OnceArguments a) {
  extern __shared__ unsigned char raw[];
  const OnceBlock<kLevels> block{(shared_address(raw) + 1023) / 1024 * 1024};
  constexpr bool kCoarse = kLevels > 1;
  if (threadIdx.x == 0) {
    block.others().init(128, kGroups * 128 + (kCoarse ? 128 : 0));
    block.own().init(128, kGroups * 128 + 128);
    block.gradients().init(kGroups * 128, 128);
  }
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x < 128) {
    lower_register_budget<kCoarse ? RP : 40>();
    produce_once<T, kLevels>(a, block);
  } else if (threadIdx.x < 256) {
    if constexpr (kCoarse) {
      raise_register_budget<RR>();
    } else {
      lower_register_budget<RR1>();
    }
    reduce_once<T, kLevels>(a, block);
  } else {
    raise_register_budget<kCoarse ? RC : RC1>();
    consume_once<T, kLevels>(a, block);
  }
}

template <class T, int kLevels>
cudaError_t launch_once(const OnceArguments& a, cudaStream_t stream) {
  const auto kernel = hkt_backward_once_kernel<T, kLevels>;
  constexpr int kMemory = OnceLayout<kLevels>::kSize;
  if (const cudaError_t e = allow_shared_memory(kernel, kMemory); e != cudaSuccess) return e;
  const int64_t work_tiles = (a.p.tokens + kRows - 1) / kRows * a.p.key_heads * a.p.batch;
  kernel<<<persistent_grid(work_tiles, a.p.causal && a.p.tokens >= kLongSequence), kOnceThreads, kMemory, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

cudaError_t hkt_backward_once_products(const OnceArguments& a, cudaStream_t stream) {
  return with_16_bit_storage(a.p.dtype, [&](auto storage) {
    using T = decltype(storage);
    if (a.p.levels == 1) return launch_once<T, 1>(a, stream);
    return a.p.levels <= 3 ? launch_once<T, 3>(a, stream) : launch_once<T, 5>(a, stream);
  });
}

}  // namespace strata::cuda
