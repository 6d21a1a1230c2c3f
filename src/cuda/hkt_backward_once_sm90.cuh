// The HKT backward on Hopper that computes every score once (hkt_backward_once_sm90.cu says how): its workspace, its
// shared memory, and the producer.
#pragma once

#include "cuda/hkt_backward_once.h"
#include "cuda/hkt_backward_sm90.cuh"

namespace strata::cuda {
namespace {

constexpr int kOnceThreads = 512;

// Shared memory of a block, in bytes from its start. A tile has 64 rows of 64 channels, of which D are used.
template <int kLevels>
struct OnceLayout {
  static constexpr bool kCoarse = kLevels > 1, kPacked = kLevels > 3;
  static constexpr int kCoarseRows = kPacked ? 64 : 48;
  static constexpr int kStages = kCoarse ? 3 : 4, kOwnBuffers = kCoarse ? 1 : 2;
  static constexpr int kTile = 64 * 128;
  // Of the block's 128 keys: level 0, values, coarse levels.
  static constexpr int kKeys = 0, kValues = 2 * kTile, kCoarseKeys = 4 * kTile, kOwn = (kCoarse ? 6 : 4) * kTile;
  // Of 64 queries: level 0, dO, coarse levels.
  static constexpr int kExtra = kTile, kCoarseTile = 2 * kTile;
  static constexpr int kStage = kCoarseTile + (kCoarse ? kCoarseRows * 128 : 0);
  static constexpr int kStagesBegin = kOwnBuffers * kOwn;
  // dS of two query tiles; its sums at level 1, of two pairs of query tiles; at all levels above, likewise.
  static constexpr int kGradients = kStagesBegin + kStages * kStage;
  static constexpr int kSums = kGradients + 4 * kTile, kUpperSums = kSums + (kCoarse ? 2 * kTile : 0);
  static constexpr int kOut = kUpperSums + (kCoarse ? 2 * kTile : 0);  // dQ in fixed point, 4 KB per warp, twice
  static constexpr int kNumbers = kOut + 2 * 16384;                    // lse and D of the stages' queries
  static constexpr int kBarriers = kNumbers + kStages * 512;
  static constexpr int kSize = kBarriers + 16 * (kStages + kOwnBuffers + 2) + 1024;
  static_assert(kSize <= 232448);
};

// Shared memory and the pipelines: tiles of queries, keys of one work tile, and dS on its way to dQ.
template <int kLevels>
struct OnceBlock {
  using M = OnceLayout<kLevels>;
  uint32_t memory;
  __device__ Pipeline<M::kStages> others() const { return {memory + M::kBarriers}; }
  __device__ Pipeline<M::kOwnBuffers> own() const { return {memory + M::kBarriers + 16 * M::kStages}; }
  __device__ Pipeline<2> gradients() const { return {memory + M::kBarriers + 16 * (M::kStages + M::kOwnBuffers)}; }
  __device__ uint32_t other_tile(int step) const {
    return memory + M::kStagesBegin + Pipeline<M::kStages>::stage(step) * M::kStage;
  }
  __device__ uint32_t own_tiles(int wave) const { return memory + Pipeline<M::kOwnBuffers>::stage(wave) * M::kOwn; }
  __device__ uint32_t gradient_tiles(int step) const { return memory + M::kGradients + (step & 1) * 2 * M::kTile; }
  __device__ uint32_t numbers(int step) const { return memory + M::kNumbers + Pipeline<M::kStages>::stage(step) * 512; }
};

// Where the coarse sums of a query tile are: pairs of tiles share a buffer at level 1; above it as many as fill 64
// columns.
template <int kLevels>
struct SumSlots {
  static constexpr int kUpperTiles = kLevels > 3 ? 2 : 4, kUpperColumns = 64 / kUpperTiles;
  int pair = 0, upper = 0;  // buffers filled so far
  __device__ static bool ends_pair(int tile, int last) { return (tile & 1) == 1 || tile + 1 == last; }
  __device__ static bool ends_upper(int tile, int last) {
    return (tile & (kUpperTiles - 1)) == kUpperTiles - 1 || tile + 1 == last;
  }
  __device__ void next(int tile, int last) {
    pair += ends_pair(tile, last);
    upper += ends_upper(tile, last);
  }
};

template <class T, int D, int kLevels>
__device__ void load_keys(const OnceArguments& a, const WorkTile& work, int wave, const OnceBlock<kLevels>& block) {
  using M = OnceLayout<kLevels>;
  const HktProblem& p = a.p;
  const int head = work.first_head / static_cast<int>(p.heads / p.key_heads);
  const uint32_t tiles = block.own_tiles(wave);
#pragma unroll 1
  for (int group = 0; group < kGroups; ++group) {
    const int first = work.own_first + 64 * group;
    load_rows<D>(tiles + M::kKeys + group * M::kTile, rows_of<const T>(p.k[0], work.batch, head), first, work.own_limit,
                 p.head_size, paired_row);
    load_rows<D>(tiles + M::kValues + group * M::kTile, rows_of<const T>(p.v, work.batch, head), first, work.own_limit,
                 p.value_size, paired_row);
    const uint32_t coarse = tiles + M::kCoarseKeys + group * M::kTile;
    if constexpr (M::kPacked) {
      load_packed<D, T>(coarse, p.k, p.levels, 1, work.batch, head, first, work.own_limit, p.head_size);
    } else if constexpr (M::kCoarse) {
      load_coarse_own<T, D>(coarse, p, p.k, work, head, first);
    }
  }
}

template <class T, int D, int kLevels>
__device__ void load_queries(const OnceArguments& a, const WorkTile& work, const OnceBlock<kLevels>& block, int& step,
                             Producer& producer) {
  using M = OnceLayout<kLevels>;
  const HktProblem& p = a.p;
  const auto pipeline = block.others();
  auto limit_of = [&](int l) { return l < p.levels ? level_rows(work.other_limit, l) : 0; };
  for (int head = work.first_head; head < work.first_head + work.heads; ++head) {
    const int64_t line = hkt_line(p, work.batch, head);
    const int begin = work.first * kOther;
    auto rows = [&](const ConstView& view) { return rows_of<const T>(view, work.batch, head); };
    RowStream<D, kOther> fine(rows(p.q[0]), begin, p.head_size), extra(rows(a.g.dout), begin, p.value_size);
    auto rows_at = [&](int l) { return rows(p.q[l < p.levels ? l : 0]); };
    RowStream<D, 32, M::kCoarseRows> level1(rows_at(1), begin / 2, p.head_size);
    RowStream<D, 16, M::kCoarseRows, 32> level2(rows_at(2), begin / 4, p.head_size);
    RowStream<D, 8, M::kCoarseRows, 48> level3(rows_at(3), begin / 8, p.head_size);
    RowStream<D, 4, M::kCoarseRows, 56> level4(rows_at(4), begin / 16, p.head_size);
    for (int i = work.first; i < work.last; ++i, ++step) {
      producer.acquire(pipeline, step);
      const uint32_t tile = block.other_tile(step);
      fine.load(tile, work.other_limit, p.head_size);
      extra.load(tile + M::kExtra, work.other_limit, p.value_size);
      if constexpr (M::kCoarse) {
        level1.load(tile + M::kCoarseTile, limit_of(1), p.head_size);
        level2.load(tile + M::kCoarseTile, limit_of(2), p.head_size);
      }
      if constexpr (M::kPacked) {
        level3.load(tile + M::kCoarseTile, limit_of(3), p.head_size);
        level4.load(tile + M::kCoarseTile, limit_of(4), p.head_size);
      }
      if (threadIdx.x < kOther) {
        const int slot = static_cast<int>(threadIdx.x), at = i * kOther + other_row(slot);
        const bool there = at < work.other_limit;
        const int64_t from = line + (there ? at : 0);
        load_number(block.numbers(step) + 4 * slot, a.lse2 + from, there);
        load_number(block.numbers(step) + 4 * (kOther + slot), a.deltas + from, there);
      }
      producer.commit(pipeline, step);
    }
  }
}

template <class T, int D, int kLevels>
__device__ void produce_once(const OnceArguments& a, const OnceBlock<kLevels>& block) {
  int step = 0;
  Producer producer;
  WorkTile work;
  for (int wave = 0; next_work_tile<true>(a.p, wave, &work); ++wave) {
    producer.acquire(block.own(), wave);
    load_keys<T, D>(a, work, wave, block);
    producer.commit(block.own(), wave);
    load_queries<T, D>(a, work, block, step, producer);
  }
  producer.finish();
}

// A weight of zero counts as 2^-60, where weights are divided.
__device__ inline float safe_weight(float a) { return copysignf(fmaxf(fabsf(a), 8.7e-19f), a); }

// The factor that takes sums over the heads before `head` to its own weight, and the one that ends the last head.
__device__ inline float next_head_factor(const float* weights, int levels, int level) {
  return safe_weight(weights[level - levels]) / safe_weight(weights[level]);
}
__device__ inline float last_head_factor(const HktProblem& p, const WorkTile& work, int level) {
  if (level >= p.levels) return 0.0f;
  const float weight = static_cast<const float*>(p.weights)[(work.first_head + work.heads - 1) * p.levels + level];
  return static_cast<float>(p.scale) * (work.heads == 1 ? weight : safe_weight(weight));
}

}  // namespace
}  // namespace strata::cuda
