// HKT backward on Hopper (sm_90a), for the common case: 1 to 5 levels, head sizes up to 128, no bias. As in
// hkt_backward_mma.cuh, one kernel owns keys and one owns queries, so that nothing is added to by two blocks. The own
// side gives the rows of the products: 128 per work tile, for two consumer warpgroups of 64; the producer loads the
// other side in tiles of 64. Scores and dS never leave the registers: rounded, they are the left operand of the second
// products.
//
// Of 16 rows of a warp, slots g and g + 8 are rows 2g and 2g + 1. Both coarse levels share one tile: slot g is row g of
// level 1, slot g + 8 its row of level 2, and of the other side 32 rows of level 1 are followed by 16 of level 2. So
// one product gives the scores of both, one has the gradients of both, and a thread has all that its two rows need.
// Sums over the other side are taken in registers, over the rows of level 2 at the end. With 4 or 5 levels, all coarse
// levels are packed into that tile (hkt_scores.cuh), and threads exchange scores and sums of levels 2 to 4.
//
// Heads are filled up to D channels, 64, 96 or 128. With 128 the sums of keys, coarse keys and values do not fit into
// the registers; there the values have a kernel of their own, which computes the scores once more. With 96 they fit, as
// P is kept rounded (kLean).
#include <algorithm>
#include <cmath>

#include "cuda/device.h"
#include "cuda/hkt_backward_sm90.cuh"
#include "cuda/hkt_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/storage.h"
#include "cuda/warp.cuh"

namespace strata::cuda {
namespace {

// x as the left operand of products over its columns.
template <class T, int kCount>
__device__ inline void to_operand(uint32_t (&packed)[kCount / 8][4], const float (&x)[kCount], float factor) {
#pragma unroll
  for (int kk = 0; kk < kCount / 8; ++kk) {
#pragma unroll
    for (int r = 0; r < 4; ++r) packed[kk][r] = pack(x[8 * kk + 2 * r] * factor, x[8 * kk + 2 * r + 1] * factor, T());
  }
}
template <class T, int D, int kSteps>
__device__ inline void gradient_product(float (&acc)[D / 2], const uint32_t (&left)[kSteps][4], uint32_t rows) {
#pragma unroll
  for (int kk = 0; kk < kSteps; ++kk)
    wgmma_rs(acc, left[kk], smem_descriptor(rows + kk * 16 * 128, kSteps * 16 * 128), T());
}
// Sums of dS over blocks of level 1 and 2 as left operands: rows of level 1 in slots g, of level 2 in slots g + 8.
template <class T>
__device__ inline void coarse_operand(uint32_t (&left)[3][4], const float (&ds)[kScores], float factor1,
                                      float factor2) {
  float sums[4][2];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int e = 0; e < 2; ++e) sums[m][e] = ds[8 * m + e] + ds[8 * m + 2 + e] + ds[8 * m + 4 + e] + ds[8 * m + 6 + e];
  }
#pragma unroll
  for (int kk = 0; kk < 2; ++kk) {
    left[kk][0] = pack(sums[2 * kk][0] * factor1, sums[2 * kk][1] * factor1, T());
    left[kk][2] = pack(sums[2 * kk + 1][0] * factor1, sums[2 * kk + 1][1] * factor1, T());
    left[kk][1] = left[kk][3] = 0;
  }
  left[2][0] = left[2][2] = 0;
  left[2][1] = pack((sums[0][0] + sums[1][0]) * factor2, (sums[0][1] + sums[1][1]) * factor2, T());
  left[2][3] = pack((sums[2][0] + sums[3][0]) * factor2, (sums[2][1] + sums[3][1]) * factor2, T());
}

// The same where all coarse levels are packed: rows of level 1 in slots g, those of levels 2 to 4 in the slots that
// packed_lane() reads. Columns: 32 of level 1, 16 of level 2, 8 of level 3 and 8 of level 4.
template <class T>
__device__ inline void packed_operand(uint32_t (&left)[4][4], const float (&ds)[kScores], const float (&factors)[5]) {
  const int lane = lane_of_thread(), g = lane / 4;
  float sums[4][2], level2[2][2], level3[2], level4[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
#pragma unroll
    for (int m = 0; m < 4; ++m) sums[m][e] = ds[8 * m + e] + ds[8 * m + 2 + e] + ds[8 * m + 4 + e] + ds[8 * m + 6 + e];
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
#pragma unroll
  for (int kk = 0; kk < 2; ++kk) {
    left[kk][0] = pack(sums[2 * kk][0] * factors[1], sums[2 * kk][1] * factors[1], T());
    left[kk][2] = pack(sums[2 * kk + 1][0] * factors[1], sums[2 * kk + 1][1] * factors[1], T());
    left[kk][1] = left[kk][3] = 0;
  }
  left[2][0] = left[2][2] = left[3][0] = left[3][2] = 0;
  left[2][1] = g < 4 ? pack(level2[0][0] * factors[2], level2[0][1] * factors[2], T()) : 0u;
  left[2][3] = g < 4 ? pack(level2[1][0] * factors[2], level2[1][1] * factors[2], T()) : 0u;
  left[3][1] = g == 4 || g == 5 ? pack(level3[0] * factors[3], level3[1] * factors[3], T()) : 0u;
  left[3][3] = g == 6 ? pack(level4[0] * factors[4], level4[1] * factors[4], T()) : 0u;
}

// What a consumer warpgroup does with its 64 own rows.
template <class T, int D, int kLevels, bool kOwnKeys, Part kPart>
struct Consumer {
  using M = Layout<D, kLevels>;
  static constexpr bool kCoarse = M::kCoarse, kPacked = M::kPacked;
  static constexpr bool kKeys = kPart != Part::kValues, kValues = kOwnKeys && kPart != Part::kKeys;
  // All sums of 96 channels leave no registers for P and dO V^T beside each other: P is then kept rounded, as dV takes
  // it.
  static constexpr bool kLean = D > 64 && kCoarse&& kKeys&& kValues;
  // dO V^T is computed beside the coarse scores, where there are registers for both.
  static constexpr bool kBeside = kKeys && kCoarse && !kPacked && !kLean;

  const Arguments& a;
  const HktProblem& p;
  const WorkTile& work;
  uint32_t own;
  int warp, lane, own_first;
  int2 full;    // tiles of the other side without an edge; the limits themselves are looked up at edges
  int rows[2];  // of this thread, in the sequence
  float fine[kKeys ? D / 2 : 1] = {}, coarse[kKeys && kCoarse ? D / 2 : 1] = {}, values[kValues ? D / 2 : 1] = {};
  float lse2[2] = {}, delta[2] = {};  // of the rows, where they are queries

  __device__ Consumer(const Arguments& arguments, const WorkTile& tile, uint32_t own_tiles, int group)
      : a(arguments),
        p(arguments.p),
        work(tile),
        own(own_tiles),
        warp(warp_of_thread() % 4),
        lane(lane_of_thread()),
        own_first(tile.own_first + 64 * group),
        full(kOwnKeys ? tile.limits.full_query_tiles(p, own_first, 64, kOther)
                      : tile.limits.full_key_tiles(p, own_first, 64, kOther)) {
    for (int half = 0; half < 2; ++half) rows[half] = own_first + paired_row(warp * 16 + lane / 4 + 8 * half);
    if (kOwnKeys) return;
    const int64_t line = hkt_line(p, work.batch, work.first_head);
    for (int half = 0; half < 2; ++half) {
      const bool real = rows[half] < work.own_limit;
      const float lse = real ? static_cast<const float*>(a.o.lse)[line + rows[half]] : -INFINITY;
      lse2[half] = lse == -INFINITY ? INFINITY : lse * kLog2e;
      delta[half] = real ? a.deltas[line + rows[half]] : 0.0f;
    }
  }

  // s: scores; dp: dO V^T. The coarse levels are the start of the fine one (hkt_scores.cuh), and dO V^T is computed
  // meanwhile.
  __device__ void products(float (&s)[kScores], float (&dp)[kScores], uint32_t tile, const LevelWeights& w) const {
    wgmma_fence();
    if constexpr (kCoarse) {
      float above[M::kCoarseRows / 2];
      wgmma_rows<T, D>(above, own + 2 * M::kOwnTile, tile + M::kCoarseTile, false);
      wgmma_commit();
      if constexpr (kBeside) {
        wgmma_rows<T, D>(dp, own + M::kOwnTile, tile + M::kExtra, false);
        wgmma_commit();
      }
      wgmma_wait<kBeside ? 1 : 0>();
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
    if constexpr (kKeys && !kBeside && !kLean) {
      wgmma_rows<T, D>(dp, own + M::kOwnTile, tile + M::kExtra, false);
      wgmma_commit();
    }
    wgmma_rows<T, D>(s, own, tile, kCoarse);
    wgmma_commit();
    wgmma_wait<0>();
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

  // s becomes P. numbers: lse and D of the tile's queries.
  __device__ void softmax(float (&s)[kScores], const float* numbers, int other_first, float full_scale) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float2 column = {};
      if (kOwnKeys) column = *reinterpret_cast<const float2*>(numbers + 8 * n + 2 * (lane % 4));
      const float column_lse[2] = {column.x * kLog2e, column.y * kLog2e};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[4 * n + i];
        x = fast_exp2(x * full_scale - (kOwnKeys ? column_lse[i % 2] : lse2[i / 2]));
      }
    }
    mask(s, other_first);
  }
  // dp becomes dS; weight(i) is P.
  template <class Weight>
  __device__ void score_gradient(float (&dp)[kScores], const float* numbers, int other_first,
                                 const Weight& weight) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float2 column = {};
      if (kOwnKeys) column = *reinterpret_cast<const float2*>(numbers + kOther + 8 * n + 2 * (lane % 4));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        dp[4 * n + i] = weight(4 * n + i) * (dp[4 * n + i] - (!kOwnKeys ? delta[i / 2] : i % 2 ? column.y : column.x));
    }
    mask(dp, other_first);
  }
  // What is masked may hold anything, and becomes zero.
  __device__ void mask(float (&x)[kScores], int other_first) const {
    if (other_first >= full.x * kOther && other_first < full.y * kOther) return;
    const SequenceLimits limits(p, work.batch);
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // the other side's rows of a column are neighbours
      const auto seen_rows = kOwnKeys ? limits.seeing_queries(p, rows[i / 2]) : limits.visible_keys(p, rows[i / 2]);
      const uint32_t bits = seen_rows.bits(other_first + key_of_slot<kTiles>(0, 2 * (lane % 4) + i % 2), kTiles);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if ((bits >> n & 1) == 0) x[4 * n + i] = 0;
      }
    }
  }

  // One tile of the other side. factors: of the levels' gradients, what differs between the heads that share keys.
  __device__ void add_tile(uint32_t tile, const float* numbers, int other_first, const LevelWeights& w,
                           const float (&factors)[5]) {
    float s[kScores], dp[kScores];
    uint32_t left_values[kValues ? kScores / 8 : 1][4], left[kKeys ? kScores / 8 : 1][4],
        left_coarse[M::kCoarseRows / 16][4];
    products(s, dp, tile, w);
    softmax(s, numbers, other_first, w.finest * static_cast<float>(p.scale) * kLog2e);
    if constexpr (kValues) to_operand<T>(left_values, s, 1.0f);
    if constexpr (kLean) {
      wgmma_fence();
      wgmma_rows<T, D>(dp, own + M::kOwnTile, tile + M::kExtra, false);
      gradient_product<T, D>(values, left_values, tile + M::kExtra);
      wgmma_commit();
      wgmma_wait<0>();
      score_gradient(dp, numbers, other_first, [&](int i) {
        const float2 pair = unpack(left_values[i / 8][i % 8 / 2], T());
        return i % 2 == 0 ? pair.x : pair.y;
      });
    } else if constexpr (kKeys) {
      score_gradient(dp, numbers, other_first, [&](int i) { return s[i]; });
    }
    if constexpr (kKeys) to_operand<T>(left, dp, factors[0]);
    if constexpr (kKeys && kPacked) {
      packed_operand<T>(left_coarse, dp, factors);
    } else if constexpr (kKeys && kCoarse) {
      coarse_operand<T>(left_coarse, dp, factors[1], factors[2]);
    }
    wgmma_fence();
    if constexpr (kValues && !kLean) gradient_product<T, D>(values, left_values, tile + M::kExtra);
    if constexpr (kKeys) gradient_product<T, D>(fine, left, tile);
    if constexpr (kKeys && kCoarse) gradient_product<T, D>(coarse, left_coarse, tile + M::kCoarseTile);
    wgmma_commit();
    wgmma_wait<0>();
  }

  // Rows of level 2 are shared by two neighbours at level 1: adds up what both have.
  __device__ void add_neighbours() {
    if constexpr (kKeys && kCoarse && !kPacked) {
#pragma unroll
      for (int i = 0; i < D / 2; ++i) {
        if (i & 2) coarse[i] += __shfl_xor_sync(~0u, coarse[i], 4);
      }
    }
  }

  // part += <dq, q> of one level, over this thread's numbers of one row, which is in slots 8 `slot` + .. of a tile.
  template <class Value>
  __device__ void add_weight_part(float& part, uint32_t tile, int slot, int half, const Value& value) const {
    const float scale = static_cast<float>(p.scale);
    const uint32_t start = tile + panel_offset(64, warp * 16 + lane / 4 + 8 * slot, 0) + 4 * (lane % 4);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      uint32_t pair;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"((start ^ (n % 8 << 4)) + n / 8 * 64 * 128));
      const float2 q = unpack(pair, T());
      part += scale * (value(4 * n + 2 * half) * q.x + value(4 * n + 2 * half + 1) * q.y);
    }
  }
  // Parts of da, from the queries, which are still in their tiles.
  __device__ void weight_parts(float (&parts)[5]) const {
    // Rows that are not there are zeros.
    auto fine_value = [&](int i) { return fine[i]; };
    add_weight_part(parts[0], own, 0, 0, fine_value);
    add_weight_part(parts[0], own, 1, 1, fine_value);
    if constexpr (kCoarse) {
      const uint32_t tile = own + 2 * M::kOwnTile;
      add_weight_part(parts[1], tile, 0, 0, [&](int i) { return coarse[i]; });
      float second = 0;
      add_weight_part(second, tile, 1, 0, [&](int i) { return coarse[i + 2]; });
#pragma unroll
      for (int l = 2; l < kLevels; ++l) parts[l] += second_level() == l && l < p.levels ? second : 0.0f;
    }
  }
  // The level of this thread's second row of the coarse tile. Of two neighbours at level 1 that both have their row of
  // level 2, one counts.
  __device__ int second_level() const {
    return kPacked ? 1 + packed_level(lane / 4 + 8) : lane / 4 % 2 == 0 ? 2 : kMmaLevels;
  }
  __device__ void store_weight_parts(float (&parts)[5]) const {
    const int64_t part =
        work.first_head * parts_of(p) + int64_t{work.tile} * (kRows / 16) + (own_first - work.own_first) / 16;
    float* const total = a.weight_parts + (part + warp) * kMmaLevels;
#pragma unroll
    for (int l = 0; l < kLevels; ++l) {
      parts[l] = warp_sum(parts[l]);
      if (lane == 0) total[l] = parts[l];
    }
  }

  // Results go out through the tiles of the rows they are gradients of.
  __device__ void store_gradients() const {
    const float scale = static_cast<float>(p.scale);
    const int stored = static_cast<int>(stored_rows(kOwnKeys ? key_side(p) : query_side(p), work.batch));
    const int head = kOwnKeys ? work.first_head / static_cast<int>(p.heads / p.key_heads) : work.first_head;
    const float* level_weight = static_cast<const float*>(p.weights) + work.first_head * p.levels;
    auto weight = [&](int l) { return l >= p.levels ? 0.0f : kOwnKeys ? scale : scale * level_weight[l]; };
    const uint32_t values_tile = own + M::kOwnTile, coarse_tile = own + 2 * M::kOwnTile;
    if constexpr (kKeys) stage_rows<T, D>(own, weight(0), [&](int i) { return fine[i]; });
    if constexpr (kValues) stage_rows<T, D>(values_tile, 1.0f, [&](int i) { return values[i]; });
    if constexpr (kKeys && kCoarse)
      stage_rows<T, D>(coarse_tile, 1.0f, [&, upper = weight(kPacked ? second_level() : 2)](int i) {
        return coarse[i] * (i & 2 ? upper : weight(1));
      });
    __syncwarp();
    // Slot `slot` of the own rows, at a level; -1 where there is no such row.
    auto row_at = [&](int slot, int level) {
      const int at = (own_first + paired_row(slot)) >> level;
      return at < level_rows(stored, level) ? at : -1;
    };
    auto rows_to = [&](const View& view) { return rows_of<T>(view, work.batch, head); };
    auto fine_row = [&](int slot) { return row_at(slot, 0); };
    const View* const to = kOwnKeys ? a.g.dk : a.g.dq;
    if constexpr (kKeys) store_rows<D>(own, rows_to(to[0]), p.head_size, fine_row);
    if constexpr (kValues) store_rows<D>(values_tile, rows_to(a.g.dv), p.value_size, fine_row);
    if constexpr (kKeys && kPacked) {
#pragma unroll 1
      for (int l = 1; l < p.levels; ++l)
        store_rows<D>(coarse_tile, rows_to(to[l]), p.head_size, [&](int slot) {
          const int at = (own_first >> l) + packed_row(slot);
          return packed_level(slot) + 1 == l && at < level_rows(stored, l) ? at : -1;
        });
    } else if constexpr (kKeys && kCoarse) {
      store_rows<D>(coarse_tile, rows_to(to[1]), p.head_size,
                    [&](int slot) { return (slot & 8) == 0 ? row_at(slot, 1) : -1; });
      if (p.levels > 2)
        store_rows<D>(coarse_tile, rows_to(to[2]), p.head_size,
                      [&](int slot) { return (slot & 9) == 8 ? row_at(slot, 2) : -1; });
    }
  }
};

template <class T, int D, int kLevels, bool kOwnKeys, Part kPart>
__device__ void consume(const Arguments& a, const Block<D, kLevels>& block, const unsigned char* start) {
  using M = Layout<D, kLevels>;
  const HktProblem& p = a.p;
  const auto pipeline = block.others();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 1, 0);  // known to be uniform
  WorkTile work;
  for (int wave = 0, step = 0; next_work_tile<kOwnKeys>(p, wave, &work); ++wave) {
    Consumer<T, D, kLevels, kOwnKeys, kPart> consumer(a, work, block.own_tiles(wave, group), group);
    block.own().wait(wave);
    for (int head = work.first_head; head < work.first_head + work.heads; ++head) {
      const float* weights = static_cast<const float*>(p.weights) + head * p.levels;
      const LevelWeights w = level_weights(weights, p.levels);
      float factors[5];
      for (int l = 0; l < 5; ++l) factors[l] = kOwnKeys && l < p.levels ? weights[l] : 1.0f;
      const int2 met = tiles_met<kOwnKeys>(p, work, consumer.own_first);
      auto pass = [&](int count) {  // tiles that only the block's other rows meet
        for (; count > 0; --count, ++step) {
          pipeline.wait(step);
          pipeline.release(step);
        }
      };
      pass(met.x - work.first);
      int i = met.x;
      for (; i < met.y; ++i, ++step) {
        pipeline.wait(step);
        const uint32_t tile = block.other_tile(step);
        const auto* numbers = reinterpret_cast<const float*>(start + (tile - block.memory) + M::kNumbers);
        consumer.add_tile(tile, numbers, i * kOther, w, factors);
        pipeline.release(step);
      }
      pass(work.last - i);
    }
    consumer.add_neighbours();
    float parts[5] = {};  // of da
    if constexpr (!kOwnKeys) consumer.weight_parts(parts);
    warpgroup_sync(1 + group);  // all have read the own rows
    consumer.store_gradients();
    block.own().release(wave);
    if constexpr (!kOwnKeys) consumer.store_weight_parts(parts);
  }
}

template <class T, int D, int kLevels, bool kOwnKeys, Part kPart>
__global__ void __launch_bounds__(kThreads, 1) hkt_backward_sm90_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ unsigned char raw[];
  constexpr int kProducer = D == 64 ? 88 : D == 96 && kLevels > 1 && kOwnKeys ? 40 : 56;  // registers, of 504 for three
  const uint32_t at = shared_address(raw);
  const Block<D, kLevels> block{(at + 1023) / 1024 * 1024};
  if (threadIdx.x == 0) {
    block.others().init(128, kGroups * 128);  // every thread of the consumers releases
    block.own().init(128, kGroups * 128);
  }
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x < 128) {
    lower_register_budget<kProducer>();
    produce<T, D, kLevels, kOwnKeys, kPart>(a, block);
  } else {
    raise_register_budget<(504 - kProducer) / 2>();
    consume<T, D, kLevels, kOwnKeys, kPart>(a, block, raw + (block.memory - at));
  }
}

template <class T, int D, int kLevels, bool kOwnKeys, Part kPart>
cudaError_t launch_one(const Arguments& a, cudaStream_t stream) {
  const auto kernel = hkt_backward_sm90_kernel<T, D, kLevels, kOwnKeys, kPart>;
  constexpr int kMemory = Layout<D, kLevels>::kSize;
  if (const cudaError_t e = allow_shared_memory(kernel, kMemory); e != cudaSuccess) return e;
  const int64_t work_tiles =
      kOwnKeys ? tile_count(key_side(a.p), kRows) * a.p.key_heads : tile_count(query_side(a.p), kRows) * a.p.heads;
  if (work_tiles == 0) return cudaSuccess;
  kernel<<<persistent_grid(work_tiles, a.p.causal && a.p.tokens >= kLongSequence), kThreads, kMemory, stream>>>(a);
  return cudaGetLastError();
}

template <class T, int D, int kLevels>
cudaError_t launch_all(const Arguments& a, cudaStream_t stream) {
  constexpr bool kSplit = D > 96 && kLevels > 1;
  if constexpr (kSplit) {
    if (const cudaError_t e = launch_one<T, D, kLevels, true, Part::kValues>(a, stream); e != cudaSuccess) return e;
  }
  constexpr Part kPart = kSplit ? Part::kKeys : Part::kAll;
  if (const cudaError_t e = launch_one<T, D, kLevels, true, kPart>(a, stream); e != cudaSuccess) return e;
  return launch_one<T, D, kLevels, false, Part::kAll>(a, stream);
}

template <class T, int D>
cudaError_t launch(const Arguments& a, cudaStream_t stream) {
  if (a.p.levels == 1) return launch_all<T, D, 1>(a, stream);
  return a.p.levels <= 3 ? launch_all<T, D, 3>(a, stream) : launch_all<T, D, 5>(a, stream);
}

}  // namespace

int64_t hkt_backward_sm90_parts(const HktProblem& p) { return parts_of(p); }

cudaError_t hkt_backward_sm90(const HktProblem& p, const HktOutputs& o, const HktGradients& g, const float* deltas,
                              float* weight_parts, cudaStream_t stream) {
  const Arguments a{p, o, g, deltas, weight_parts};
  return with_16_bit_storage(p.dtype, [&](auto storage) {
    using T = decltype(storage);
    const int channels = std::max(p.head_size, p.value_size);
    if (channels <= 64) return launch<T, 64>(a, stream);
    return channels <= 96 ? launch<T, 96>(a, stream) : launch<T, 128>(a, stream);
  });
}

}  // namespace strata::cuda
