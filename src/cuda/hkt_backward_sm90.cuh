// The HKT backward on Hopper: its work tiles, its shared memory, and the producer (hkt_backward_sm90.cu has the
// consumers and says what for).
#pragma once

#include "cuda/hkt_scores.cuh"
#include "cuda/load.cuh"
#include "cuda/pipeline.cuh"
#include "strata/hkt.h"

namespace strata::cuda {
namespace {

constexpr int kGroups = 2, kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1);
constexpr int kOther = 64, kTiles = kOther / 8, kScores = kOther / 2;  // the other side's tile; scores of a thread

enum class Part { kAll, kKeys, kValues };  // dk or dq, and dv

// Shared memory of a block, in bytes from its start. P: panels of 64 channels.
template <int D, int kLevels>
struct Layout {
  static constexpr int P = (D + 63) / 64, kStages = D <= 64 ? 3 : 2;
  static constexpr bool kCoarse = kLevels > 1, kPacked = kLevels > 3;
  // Of the other side: 32 of level 1, 16 of level 2; packed also 8 of level 3, and 4 of level 4, each twice.
  static constexpr int kCoarseRows = kPacked ? 64 : 48;
  static constexpr int kOwnTile = 64 * 128 * P, kOwnTiles = kCoarse ? 3 : 2;  // per group: fine, v or dout, coarse
  static constexpr int kExtra = kOther * 128 * P;                             // within a stage: v or dout
  static constexpr int kCoarseTile = 2 * kExtra;
  static constexpr int kNumbers = kCoarseTile + (kCoarse ? kCoarseRows * 128 * P : 0);  // lse and D of its queries
  static constexpr int kStage = kNumbers + 1024;
  static constexpr int kOwn = kGroups * kOwnTiles * kOwnTile, kOwnBuffers = D <= 64 ? 2 : 1;
  static constexpr int kStagesBegin = kOwnBuffers * kOwn;
  static constexpr int kBarriers = kStagesBegin + kStages * kStage;
  static constexpr int kSize = kBarriers + 16 * (kStages + kOwnBuffers) + 1024;
};

// Shared memory and the two pipelines: tiles of the other side in stages, and the owner's rows of one work tile.
template <int D, int kLevels>
struct Block {
  using M = Layout<D, kLevels>;
  uint32_t memory;
  __device__ Pipeline<M::kStages> others() const { return {memory + M::kBarriers}; }
  __device__ Pipeline<M::kOwnBuffers> own() const { return {memory + M::kBarriers + Pipeline<M::kStages>::kBytes}; }
  __device__ uint32_t other_tile(int step) const {
    return memory + M::kStagesBegin + Pipeline<M::kStages>::stage(step) * M::kStage;
  }
  __device__ uint32_t own_tiles(int wave, int group) const {
    return memory + Pipeline<M::kOwnBuffers>::stage(wave) * M::kOwn + group * M::kOwnTiles * M::kOwnTile;
  }
};

__host__ __device__ constexpr int other_row(int slot) { return slot % 8 * (kOther / 8) + slot / 8; }

// Parts of da, per head: one per warp.
__host__ __device__ inline int64_t parts_of(const HktProblem& p) {
  return tile_count(query_side(p), kRows) * (kRows / 16);
}

struct Arguments {
  HktProblem p;
  HktOutputs o;
  HktGradients g;
  const float* deltas;
  float* weight_parts;
};

// The rows from own_first on, and what they meet of the other side: for every head, tiles first .. last - 1.
struct WorkTile {
  SequenceLimits limits;
  int first_head, heads, first, last, batch, own_first;
  int own_limit, other_limit;  // real tokens
  int tile;                    // counted through all sequences
};
template <bool kOwnKeys>
__device__ bool next_work_tile(const HktProblem& p, int wave, WorkTile* work) {
  const int group_size = static_cast<int>(p.heads / p.key_heads);
  const auto owners = static_cast<unsigned>(kOwnKeys ? p.key_heads : p.heads);
  const HktSide own = kOwnKeys ? key_side(p) : query_side(p);
  // The most work first: early keys are seen by most, late queries see most.
  int owner;
  if (own.begins == nullptr) {
    const unsigned row_blocks = (static_cast<unsigned>(own.tokens) + kRows - 1) / kRows,
                   lines = owners * static_cast<unsigned>(p.batch);
    LineTile at;
    if (!next_line_tile(wave, row_blocks, lines, section_of(p), &at)) return false;
    const unsigned block = kOwnKeys ? at.rank : row_blocks - 1 - at.rank;
    owner = static_cast<int>(at.line % owners);
    work->batch = static_cast<int>(at.line / owners);
    work->own_first = static_cast<int>(block * kRows);
    work->tile = static_cast<int>(work->batch * row_blocks + block);
  } else {
    const auto tiles = static_cast<unsigned>(tile_count(own, kRows)),
               item = static_cast<unsigned>(scheduled_tile(wave));
    if (item >= owners * tiles) return false;
    owner = static_cast<int>(item / tiles);
    work->tile = static_cast<int>(kOwnKeys ? item % tiles : tiles - 1 - item % tiles);
    const HktTile at = locate_tile(own, work->tile, kRows);
    work->batch = static_cast<int>(at.sequence);
    work->own_first = static_cast<int>(at.tile) * kRows;
  }
  work->first_head = owner * (kOwnKeys ? group_size : 1);
  work->heads = kOwnKeys ? group_size : 1;
  work->limits = SequenceLimits(p, work->batch);
  work->own_limit = kOwnKeys ? work->limits.keys : work->limits.queries;
  work->other_limit = kOwnKeys ? work->limits.queries : work->limits.keys;
  const int2 range = kOwnKeys ? work->limits.query_tiles(p, work->own_first, kRows, kOther)
                              : work->limits.key_tiles(p, work->own_first, kRows, kOther);
  work->first = range.x;
  work->last = range.y;
  return true;
}

// Of the tiles that the block's rows meet, those that the 64 rows from `first` on do.
template <bool kOwnKeys>
__device__ int2 tiles_met(const HktProblem& p, const WorkTile& work, int first) {
  const int2 range =
      kOwnKeys ? work.limits.query_tiles(p, first, 64, kOther) : work.limits.key_tiles(p, first, 64, kOther);
  return make_int2(min(max(range.x, work.first), work.last), min(range.y, work.last));
}

// Slots g of the tile are rows of level 1, slots g + 8 those of level 2, zeros where there is none.
template <class T, int D>
__device__ void load_coarse_own(uint32_t tile, const HktProblem& p, const ConstView* own, const WorkTile& work,
                                int head, int first) {
  using S = ThreadSlice<D>;
  if (S::is_idle()) return;
  const bool three = p.levels > 2;
  const Rows<const T> rows[2] = {rows_of<const T>(own[1], work.batch, head),
                                 rows_of<const T>(own[three ? 2 : 1], work.batch, head)};
  const int sixteen = S::slot() / 16,
            at[2] = {first / 2 + sixteen * 8 + S::slot() % 8, first / 4 + sixteen * 4 + S::slot() % 8 / 2};
  const int limits[2] = {(work.own_limit + 1) / 2, three ? (work.own_limit + 3) / 4 : 0}, bytes = S::bytes(p.head_size);
  const char* const source[2] = {S::source(rows[0], at[0], p.head_size), S::source(rows[1], at[1], p.head_size)};
  const uint32_t to = tile + panel_offset(64, S::slot(), S::chunk());
#pragma unroll
  for (int i = 0; i < 64 / S::kSlots; ++i) {
    const bool upper = ((S::slot() + S::kSlots * i) & 8) != 0;
    const int further = S::kSlots * i / 16 * (upper ? 4 : 8);
    cp_async(to + i * S::kSlots * 128,
             (upper ? source[1] : source[0]) + 2 * further * (upper ? rows[1].stride : rows[0].stride),
             (upper ? at[1] : at[0]) + further < (upper ? limits[1] : limits[0]) ? bytes : 0);
  }
}

template <class T, int D, int kLevels, bool kOwnKeys, Part kPart>
__device__ void load_own(const Arguments& a, const WorkTile& work, int wave, const Block<D, kLevels>& block) {
  using M = Layout<D, kLevels>;
  const HktProblem& p = a.p;
  const int key_head = work.first_head / static_cast<int>(p.heads / p.key_heads);
  const ConstView* const own = kOwnKeys ? p.k : p.q;
  const ConstView& extra = kOwnKeys ? p.v : a.g.dout;
  const int head = kOwnKeys ? key_head : work.first_head;
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t tiles = block.own_tiles(wave, group);
    const int first = work.own_first + 64 * group;
    load_rows<D>(tiles, rows_of<const T>(own[0], work.batch, head), first, work.own_limit, p.head_size, paired_row);
    if constexpr (kPart != Part::kValues)
      load_rows<D>(tiles + M::kOwnTile, rows_of<const T>(extra, work.batch, head), first, work.own_limit, p.value_size,
                   paired_row);
    const uint32_t coarse = tiles + 2 * M::kOwnTile;
    if constexpr (M::kPacked) {
      load_packed<D, T>(coarse, own, p.levels, 1, work.batch, head, first, work.own_limit, p.head_size);
    } else if constexpr (M::kCoarse) {
      load_coarse_own<T, D>(coarse, p, own, work, head, first);
    }
  }
}

// Tiles of the other side into the stages, step by step.
template <class T, int D, int kLevels, bool kOwnKeys>
__device__ void load_others(const Arguments& a, const WorkTile& work, const Block<D, kLevels>& block, int& step,
                            Producer& producer) {
  using M = Layout<D, kLevels>;
  const HktProblem& p = a.p;
  const auto pipeline = block.others();
  const int key_head = work.first_head / static_cast<int>(p.heads / p.key_heads);
  const ConstView* const others = kOwnKeys ? p.q : p.k;
  const ConstView& other_extra = kOwnKeys ? a.g.dout : p.v;
  auto limit_of = [&](int l) { return l < p.levels ? level_rows(work.other_limit, l) : 0; };
  for (int head = work.first_head; head < work.first_head + work.heads; ++head) {
    const int other_head = kOwnKeys ? head : key_head;
    const int64_t line = hkt_line(p, work.batch, head);
    const int begin = work.first * kOther;
    auto rows = [&](const ConstView& view) { return rows_of<const T>(view, work.batch, other_head); };
    RowStream<D, kOther> fine(rows(others[0]), begin, p.head_size), extra(rows(other_extra), begin, p.value_size);
    auto rows_at = [&](int l) { return rows(others[l < p.levels ? l : 0]); };
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
      if (kOwnKeys && threadIdx.x < kOther) {
        const int slot = static_cast<int>(threadIdx.x), at = i * kOther + other_row(slot);
        const bool there = at < work.other_limit;
        const int64_t from = line + (there ? at : 0);
        const uint32_t numbers = tile + M::kNumbers + 4 * slot;
        load_number(numbers, static_cast<const float*>(a.o.lse) + from, there);
        load_number(numbers + 4 * kOther, a.deltas + from, there);
      }
      producer.commit(pipeline, step);
    }
  }
}

template <class T, int D, int kLevels, bool kOwnKeys, Part kPart>
__device__ void produce(const Arguments& a, const Block<D, kLevels>& block) {
  int step = 0;
  Producer producer;
  WorkTile work;
  for (int wave = 0; next_work_tile<kOwnKeys>(a.p, wave, &work); ++wave) {
    producer.acquire(block.own(), wave);
    load_own<T, D, kLevels, kOwnKeys, kPart>(a, work, wave, block);
    producer.commit(block.own(), wave);
    load_others<T, D, kLevels, kOwnKeys>(a, work, block, step, producer);
  }
  producer.finish();
}

}  // namespace
}  // namespace strata::cuda
