// The consumers of the HKT backward that computes every score once (hkt_backward_once_sm90.cu): P and dS of 64 keys and
// all queries, dV and dK.
#pragma once

#include <cmath>

#include "cuda/hkt_backward_once_sm90.cuh"
#include "cuda/warp.cuh"

namespace strata::cuda {
namespace {

// Rows in shared memory are given by their descriptors (wgmma.cuh), D channels each.
// acc += left x rows.
template <class T, int kCount>
__device__ inline void gradient_product(float (&acc)[kCount], const uint32_t (&left)[4][4], uint64_t rows) {
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) wgmma_rs(acc, left[kk], further(rows, kk * 16 * 128), T());
}
// acc = left rows x rows.
template <class T, int kSteps>
__device__ inline void row_product(float (&acc)[32], const uint32_t (&left)[kSteps][4], uint64_t rows) {
#pragma unroll
  for (int kk = 0; kk < kSteps; ++kk) {
    if (kk == 0) {
      wgmma_rs_rows_first(acc, left[0], rows, T());
    } else {
      wgmma_rs_rows(acc, left[kk], further(rows, kk * 32), 1, T());
    }
  }
}
template <class T, int D, int kCount>
__device__ inline void row_product(float (&acc)[kCount], uint64_t left, uint64_t rows) {
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
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

// What a consumer warpgroup does with its 64 keys.
template <class T, int D, int kLevels>
struct KeyConsumer {
  using M = OnceLayout<kLevels>;
  [[maybe_unused]] static constexpr bool kCoarse = M::kCoarse, kPacked = M::kPacked, kOperands = !kCoarse;

  const OnceArguments& a;
  const HktProblem& p;
  const WorkTile& work;
  uint32_t own;
  uint64_t own_rows;
  int group, warp, lane, own_first;
  float keys[D / 2] = {}, values[D / 2] = {};
  uint32_t key_operand[kOperands ? D / 16 : 1][4], value_operand[kOperands ? D / 16 : 1][4];

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
  __device__ void load_operand(uint32_t (&operand)[D / 16][4], uint32_t tile) const {
    const uint32_t at = tile + panel_offset(64, 16 * warp + lane % 16, lane / 16);
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) ldmatrix(operand[kk], at ^ (kk << 5));
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
    const SequenceLimits& limits = work.limits;
    if (!limits.is_edge(p, other_first, kOther, own_first, 64)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // the queries of a column are neighbours
      const auto seen = limits.seeing_queries(p, own_first + paired_row(warp * 16 + lane / 4 + 8 * (i / 2)));
      const uint32_t bits = seen.bits(other_first + key_of_slot<kTiles>(0, 2 * (lane % 4) + i % 2), kTiles);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if ((bits >> n & 1) == 0) x[4 * n + i] = 0;
      }
    }
  }

  // dS and its coarse sums into shared memory, as rows of keys.
  __device__ void store_gradients(const uint32_t (&left)[4][4], const float (&ds)[kScores],
                                  const OnceBlock<kLevels>& block, int step, int tile,
                                  const SumSlots<kLevels>& slots) const {
    const uint32_t to =
        block.gradient_tiles(step) + group * M::kTile + panel_offset(64, 16 * warp + lane % 16, lane / 16);
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
               pack(sums[1][0], sums[1][1], T()), pack(sums[2][0], sums[2][1], T()), pack(sums[3][0], sums[3][1], T()));
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
      row_product<T, D>(above, further(own_rows, M::kCoarseKeys), further(queries, M::kCoarseTile));
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
      for (int kk = 0; kk < D / 16; ++kk)
        wgmma_ss(s, further(own_rows, M::kKeys + kk * 32), further(queries, kk * 32), 1, T());
      wgmma_commit();
      row_product<T, D>(dp, further(own_rows, M::kValues), further(queries, M::kExtra));
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
    const float full_scale = w.finest * static_cast<float>(p.scale) * kLog2e;
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
    hand_over(left, dp, block, step, i, slots);
    wgmma_wait<0>();
  }
  // A tile of queries that see none of these keys.
  __device__ void skip_tile(const OnceBlock<kLevels>& block, int step, int i, const SumSlots<kLevels>& slots) const {
    const uint32_t left[4][4] = {};
    const float ds[kScores] = {};
    hand_over(left, ds, block, step, i, slots);
  }
  // dS to the reducer.
  __device__ void hand_over(const uint32_t (&left)[4][4], const float (&ds)[kScores], const OnceBlock<kLevels>& block,
                            int step, int i, const SumSlots<kLevels>& slots) const {
    const auto gradients = block.gradients();
    if (step >= 2) mbarrier_wait(gradients.empty(step), (step / 2 - 1) & 1);
    store_gradients(left, ds, block, step, i, slots);
    fence_proxy_async();
    mbarrier_arrive(gradients.full(step));
  }

  // Results go out through the tile of the values, which are in registers.
  __device__ void store(float key_factor) const {
    const uint32_t tile = own + M::kValues + group * M::kTile;
    const int stored = work.limits.key_rows(p), head = work.first_head / static_cast<int>(p.heads / p.key_heads);
    auto row = [&](int slot) {
      const int at = own_first + paired_row(slot);
      return at < stored ? at : -1;
    };
    stage_rows<T, D>(tile, 1.0f, [&](int i) { return values[i]; });
    __syncwarp();
    store_rows<D>(tile, rows_of<T>(a.g.dv, work.batch, head), p.value_size, row);
    __syncwarp();
    stage_rows<T, D>(tile, key_factor, [&](int i) { return keys[i]; });
    __syncwarp();
    store_rows<D>(tile, rows_of<T>(a.g.dk[0], work.batch, head), p.head_size, row);
  }
};

template <class T, int D, int kLevels>
__device__ void consume_once(const OnceArguments& a, const OnceBlock<kLevels>& block) {
  const HktProblem& p = a.p;
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 2, 0);  // known to be uniform
  WorkTile work;
  SumSlots<kLevels> slots;
  for (int wave = 0, step = 0; next_work_tile<true>(p, wave, &work); ++wave) {
    block.own().wait(wave);
    KeyConsumer<T, D, kLevels> consumer(a, work, block.own_tiles(wave), group);
    for (int head = work.first_head; head < work.first_head + work.heads; ++head) {
      const float* weights = static_cast<const float*>(p.weights) + head * p.levels;
      const LevelWeights w = level_weights(weights, p.levels);
      if (head > work.first_head) {
        const float factor = next_head_factor(weights, p.levels, 0);
#pragma unroll
        for (int i = 0; i < D / 2; ++i) consumer.keys[i] *= factor;
      }
      int i = work.first;
      for (const int met = tiles_met<true>(p, work, consumer.own_first).x; i < met; ++i, ++step) {
        block.others().wait(step);
        consumer.skip_tile(block, step, i, slots);
        slots.next(i, work.last);
        block.others().release(step);
      }
      for (; i < work.last; ++i, ++step) {
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

}  // namespace
}  // namespace strata::cuda
