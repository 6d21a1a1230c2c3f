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

template <class T, int kSteps>
__device__ inline void gradient_product(float (&acc)[32], const uint32_t (&left)[kSteps][4], uint32_t rows) {
#pragma unroll
  for (int kk = 0; kk < kSteps; ++kk) wgmma_rs(acc, left[kk], smem_descriptor(rows + kk * 16 * 128), T());
}
// acc (+)= left rows x rows, over their 64 channels.
template <class T>
__device__ inline void row_product(float (&acc)[32], const uint32_t (&left)[4][4], uint32_t rows, bool add) {
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) wgmma_rs_rows(acc, left[kk], smem_descriptor(rows + kk * 32), kk > 0 || add, T());
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
  int group, warp, lane, own_first;
  float keys[32] = {}, values[32] = {};
  uint32_t key_operand[kOperands ? 4 : 1][4], value_operand[kOperands ? 4 : 1][4];

  __device__ KeyConsumer(const OnceArguments& arguments, const WorkTile& tile, uint32_t own_tiles, int my_group)
      : a(arguments),
        p(arguments.p),
        work(tile),
        own(own_tiles),
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

  // Begins s, the scores, and dp, dO V^T. All that is left to wait for is dp.
  __device__ void products(float (&s)[kScores], float (&dp)[kScores], uint32_t tile, const LevelWeights& w) const {
    wgmma_fence();
    if constexpr (kCoarse) {
      float above[M::kCoarseRows / 2];
      wgmma_rows<T, kD>(above, own + M::kCoarseKeys + group * M::kTile, tile + M::kCoarseTile, false);
      wgmma_commit();
      wgmma_wait<0>();
      float level2[2][2];
      if constexpr (kPacked) unpack_levels(level2, above, w);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = kPacked ? level2[n / 4][i % 2] : above[(4 + n / 4) * 4 + 2 + i % 2];
          s[4 * n + i] = (above[n / 2 * 4 + i % 2] + x * w.down[1]) * w.down[0];
        }
      }
      wgmma_fence();
    }
    if constexpr (kOperands) {
      row_product<T>(s, key_operand, tile, kCoarse);
      wgmma_commit();
      row_product<T>(dp, value_operand, tile + M::kExtra, false);
    } else {
      wgmma_rows<T, kD>(s, own + M::kKeys + group * M::kTile, tile, kCoarse);
      wgmma_commit();
      wgmma_rows<T, kD>(dp, own + M::kValues + group * M::kTile, tile + M::kExtra, false);
    }
    wgmma_commit();
    wgmma_wait<1>();
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
      const uint32_t level1 = block.memory + M::kSums + slots.pair % 2 * M::kTile,
                     upper = block.memory + M::kUpperSums + slots.upper % 2 * M::kTile;
      stmatrix(level1 + panel_offset(64, row, tile % 2 * 4 + lane / 8), pack(sums[0][0], sums[0][1], T()),
               pack(sums[1][0], sums[1][1], T()), pack(sums[2][0], sums[2][1], T()),
               pack(sums[3][0], sums[3][1], T()));
      if constexpr (kPacked) {
        store_packed(upper + panel_offset(64, row, tile % 2 * 4 + lane / 8), sums);
      } else {  // half of the sum of level 2; its other half is in the neighbouring row
        stmatrix(upper + panel_offset(64, row, tile % 4 * 2 + lane / 8 % 2),
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

  // One tile of queries.
  __device__ void add_tile(const OnceBlock<kLevels>& block, int step, int i, const LevelWeights& w,
                           const SumSlots<kLevels>& slots) {
    float s[kScores], dp[kScores];
    uint32_t left[4][4], left_values[4][4];
    const uint32_t tile = block.other_tile(step), numbers = block.numbers(step) + 8 * (lane % 4);
    products(s, dp, tile, w);
    const float full_scale = w.finest * static_cast<float>(p.scale) * kLog2e;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 lse = load_pair(numbers + 32 * n);
#pragma unroll
      for (int e = 0; e < 4; ++e) s[4 * n + e] = fast_exp2(s[4 * n + e] * full_scale - (e % 2 ? lse.y : lse.x));
    }
    mask(s, i * kOther);
    to_operand<T>(left_values, s);
    wgmma_wait<0>();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 delta = load_pair(numbers + 256 + 32 * n);
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[4 * n + e] = s[4 * n + e] * (dp[4 * n + e] - (e % 2 ? delta.y : delta.x));
    }
    mask(dp, i * kOther);
    wgmma_fence();
    gradient_product<T>(values, left_values, tile + M::kExtra);
    wgmma_commit();
    to_operand<T>(left, dp);
    const auto gradients = block.gradients();
    if (step >= 2) mbarrier_wait(gradients.empty(step), (step / 2 - 1) & 1);
    store_gradients(left, dp, block, step, i, slots);
    fence_proxy_async();
    mbarrier_arrive(gradients.full(step));
    wgmma_fence();
    gradient_product<T>(keys, left, tile);
    wgmma_commit();
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
  const int group = static_cast<int>(threadIdx.x) / 128 - 2;
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
  float level1[kCoarse ? 32 : 1] = {}, upper[kCoarse ? 32 : 1] = {};  // dK

  __device__ Reducer(const OnceArguments& arguments, const WorkTile& tile, const OnceBlock<kLevels>& memory, int wave)
      : a(arguments),
        p(arguments.p),
        work(tile),
        block(memory),
        tiles(once_tiles(arguments.p.tokens, arguments.p.levels)),
        own(memory.own_tiles(wave)),
        warp(warp_of_thread() % 4),
        lane(lane_of_thread()) {}

  __device__ int64_t line(int head) const { return static_cast<int64_t>(work.batch) * p.heads + head; }
  __device__ const float* scales(int head, int level) const {
    return a.scales + line(head) * 128 * tiles.fine + once_level_begin(tiles.fine, level);
  }
  // Of this lane's two rows of a tile of dQ.
  __device__ float2 fine_scales(int head, int i) const {
    return *reinterpret_cast<const float2*>(scales(head, 0) + 64 * i + 8 * (lane / 4) + 2 * warp);
  }
  __device__ float2 pair_scales(int head, int i) const {
    return *reinterpret_cast<const float2*>(scales(head, 1) + 32 * (i / 2 * 2 + warp / 2) + 4 * (lane / 4) +
                                            warp % 2 * 2);
  }
  __device__ float2 upper_scales(int head, int i) const {
    const int tile = i / Slots::kUpperTiles * Slots::kUpperTiles + warp / (4 / Slots::kUpperTiles), g = lane / 4;
    if (kPacked && warp % 2 == 1) return {scales(head, 3)[8 * tile + g], scales(head, 4)[4 * tile + g / 2]};
    return *reinterpret_cast<const float2*>(scales(head, 2) + 16 * tile + 2 * g);
  }

  // Adds 16 rows x 64 channels of this warp to the sums of dQ: tile `tile` of the head.
  __device__ void add_rows(const float (&x)[32], float2 scale, int head, int tile) {
    const int64_t at = line(head) * tiles.all() + tile;
    const uint32_t buffer = block.memory + M::kOut + out_buffer * 16384 + warp * 4096;
    if (M::kOutBuffers == 2) out_buffer ^= 1;
    if (lane == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(M::kOutBuffers - 1) : "memory");
    __syncwarp();
    float total[2] = {};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      total[0] += fabsf(x[4 * n]) + fabsf(x[4 * n + 1]);
      total[1] += fabsf(x[4 * n + 2]) + fabsf(x[4 * n + 3]);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(buffer + 512 * n + 16 * lane),
                   "r"(__float2int_rn(x[4 * n] * scale.x)), "r"(__float2int_rn(x[4 * n + 1] * scale.x)),
                   "r"(__float2int_rn(x[4 * n + 2] * scale.y)), "r"(__float2int_rn(x[4 * n + 3] * scale.y))
                   : "memory");
    }
    if (!(total[0] + total[1] < INFINITY)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!(total[half] < INFINITY)) a.broken[at * 64 + 16 * warp + lane / 4 + 8 * half] = 1;
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
  __device__ static void query_product(float (&acc)[32], uint32_t sums, uint32_t keys, uint32_t group) {
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk)
      wgmma_ss_columns<true>(acc, smem_descriptor(sums + kk * 2048), smem_descriptor(keys + kk * 2 * group, 16, group),
                             kk > 0, T());
  }

  // Tile i of the queries, as step `step`.
  __device__ void add_tile(int step, int head, int i, const Slots& slots) {
    const uint32_t pair_sums = block.memory + M::kSums + slots.pair % 2 * M::kTile,
                   upper_sums = block.memory + M::kUpperSums + slots.upper % 2 * M::kTile;
    const float2 scale = fine_scales(head, i);
    float dq[32];
    if constexpr (kCoarse) block.others().wait(step);
    block.gradients().wait(step);
    wgmma_fence();
    if constexpr (kCoarse) {
      const uint32_t queries = block.other_tile(step) + M::kCoarseTile;
#pragma unroll
      for (int kk = 0; kk < 2; ++kk)
        wgmma_ss_columns<false>(level1, smem_descriptor(pair_sums + i % 2 * 64 + kk * 32),
                                smem_descriptor(queries + kk * 2048), 1, T());
#pragma unroll
      for (int kk = 0; kk < kUpperSteps; ++kk)
        wgmma_ss_columns<false>(upper,
                                smem_descriptor(upper_sums + i % Slots::kUpperTiles * (32 * kUpperSteps) + kk * 32),
                                smem_descriptor(queries + (2 + kk) * 2048), 1, T());
      wgmma_commit();
    }
    query_product<8>(dq, block.gradient_tiles(step), own + M::kKeys, 1024);
    wgmma_commit();
    if constexpr (kCoarse) {
      wgmma_wait<1>();
      block.others().release(step);
    }
    wgmma_wait<0>();
    const bool ends_pair = kCoarse && Slots::ends_pair(i, work.last),
               ends_upper = kCoarse && p.levels > 2 && Slots::ends_upper(i, work.last);
    if (!ends_pair) block.gradients().release(step);
    add_rows(dq, scale, head, i);
    if constexpr (kCoarse) {
      if (!ends_pair) return;
      const float2 pair_scale = pair_scales(head, i);
      wgmma_fence();
      query_product<4>(dq, pair_sums, own + M::kCoarseKeys, 2048);
      wgmma_commit();
      wgmma_wait<0>();
      if (!ends_upper) block.gradients().release(step);
      if (is_there(i / 2 * 2 + warp / 2, i)) add_rows(dq, pair_scale, head, tiles.fine + i / 2);
      if (!ends_upper) return;
      const float2 upper_scale = upper_scales(head, i);
      wgmma_fence();
      query_product<4>(dq, upper_sums, own + M::kCoarseKeys + 1024, 2048);
      wgmma_commit();
      wgmma_wait<0>();
      block.gradients().release(step);
      constexpr int kShare = Slots::kUpperTiles;
      if (is_there(i / kShare * kShare + warp / (4 / kShare), i))
        add_rows(dq, upper_scale, head, tiles.fine + tiles.pairs + i / kShare);
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
      if (head > work.first_head) reducer.next_head(static_cast<const float*>(p.weights) + head * p.levels);
      for (int i = work.first; i < work.last; ++i, ++step) {
        reducer.add_tile(step, head, i, slots);
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
    lower_register_budget<RP>();
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
