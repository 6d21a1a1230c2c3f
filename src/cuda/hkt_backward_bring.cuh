// The HKT backward on Hopper: how its work is shared out, its shared memory laid out, and its tiles brought
// (hkt_backward_hopper.cu says what for).
#pragma once

#include "cuda/bring.cuh"
#include "strata/hkt.h"

namespace strata::cuda {
namespace {

constexpr int kGroups = 2, kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1);
constexpr int kOther = 64, kTiles = kOther / 8, kScores = kOther / 2;  // the other side's tile; numbers of a thread

enum class Part { kAll, kKeys, kValues };  // dk or dq, and dv
constexpr int kCoarseRows = 48;            // of the other side: 32 of level 1, 16 of level 2

// Shared memory of a block, in bytes from its start. P: panels of 64 channels.
template <int D, bool kCoarse>
struct Plan {
  static constexpr int P = D / 64, kStages = D == 64 ? 3 : 2;
  static constexpr int kOwnTile = 64 * 128 * P, kOwnTiles = kCoarse ? 3 : 2;  // per group: fine, v or dout, coarse
  static constexpr int kExtra = kOther * 128 * P;                             // within a stage: v or dout
  static constexpr int kCoarseTile = 2 * kExtra;
  static constexpr int kNumbers = kCoarseTile + (kCoarse ? kCoarseRows * 128 * P : 0);  // lse and D of its queries
  static constexpr int kStage = kNumbers + 1024;
  static constexpr int kOwn = kGroups * kOwnTiles * kOwnTile, kOwnBuffers = D == 64 ? 2 : 1;
  static constexpr int kStagesBegin = kOwnBuffers * kOwn;
  static constexpr int kBarriers = kStagesBegin + kStages * kStage;  // full and empty: stages, then own
  static constexpr int kSize = kBarriers + 16 * (kStages + kOwnBuffers) + 1024;
  __device__ static uint32_t full(uint32_t barriers, int stage) { return barriers + 16 * stage; }
  __device__ static uint32_t empty(uint32_t barriers, int stage) { return barriers + 16 * stage + 8; }
};

__host__ __device__ constexpr int own_row(int slot) { return (slot & ~15) + 2 * (slot & 7) + (slot >> 3 & 1); }
__host__ __device__ constexpr int other_row(int slot) { return slot % 8 * (kOther / 8) + slot / 8; }

// Parts of da: one per warp.
__host__ __device__ inline int64_t parts_of(const HktProblem& p) {
  return (p.tokens + kRows - 1) / kRows * (kRows / 16);
}

struct Arguments {
  HktProblem p;
  HktOutputs o;
  HktGradients g;
  const float* deltas;
  float* weight_parts;
};

// A piece of work: the rows from own_first on, and what they meet of the other side: for every head, tiles first ..
// last - 1. There is one block per multiprocessor, which goes from one piece to the next, so that the rows of the next
// one are brought, and its first tiles, while the results of the last one are stored.
struct Walk {
  int first_head, heads, first, last, limit, batch, own_first;
};
// Piece number `turn` of this block. Every round is shared out among all blocks, one further each time, so that each
// has its share of the long pieces and of the short ones.
template <bool kOwnKeys>
__device__ bool find_work(const HktProblem& p, int64_t turn, Walk* walk) {
  const int group_size = static_cast<int>(p.heads / p.key_heads), tokens = static_cast<int>(p.tokens);
  const int row_blocks = (tokens + kRows - 1) / kRows, owners = static_cast<int>(kOwnKeys ? p.key_heads : p.heads);
  const int64_t item = turn * gridDim.x + (blockIdx.x + turn) % gridDim.x;
  if (item >= p.batch * owners * row_blocks) return false;
  const int block = static_cast<int>(item % row_blocks), owner = static_cast<int>(item / row_blocks % owners);
  walk->batch = static_cast<int>(item / row_blocks / owners);
  walk->limit =
      p.lengths == nullptr ? tokens : static_cast<int>(max(int64_t{0}, min(p.lengths[walk->batch], p.tokens)));
  walk->first_head = owner * (kOwnKeys ? group_size : 1);
  walk->heads = kOwnKeys ? group_size : 1;
  // The most work first: early keys are seen by most, late queries see most.
  walk->own_first = (kOwnKeys ? block : row_blocks - 1 - block) * kRows;
  const int blocks = (walk->limit + kOther - 1) / kOther;
  walk->first = kOwnKeys && p.causal ? walk->own_first / kOther : 0;
  walk->last = !kOwnKeys && p.causal ? min(blocks, (walk->own_first + kRows) / kOther) : blocks;
  if (walk->own_first >= walk->limit || walk->last < walk->first) walk->last = walk->first;
  return true;
}

// Slots g of the tile are rows of level 1, slots g + 8 those of level 2, zeros where there is none.
template <class T, int D>
__device__ void bring_coarse_own(uint32_t tile, const HktProblem& p, const ConstView* own, const Walk& walk, int head,
                                 int first) {
  using S = Share<D>;
  const bool three = p.levels > 2;
  const Rows<const T> rows[2] = {rows_of<const T>(own[1], walk.batch, head),
                                 rows_of<const T>(own[three ? 2 : 1], walk.batch, head)};
  const int at[2] = {first / 2 + S::slot() % 8, first / 4 + S::slot() % 8 / 2};
  const int limits[2] = {(walk.limit + 1) / 2, three ? (walk.limit + 3) / 4 : 0}, bytes = S::bytes(p.head_size);
  const char* const source[2] = {S::source(rows[0], at[0], p.head_size), S::source(rows[1], at[1], p.head_size)};
  const uint32_t to = tile + panel_offset(64, S::slot(), S::chunk());
#pragma unroll
  for (int i = 0; i < 64 / S::kSlots; ++i) {
    const bool upper = ((S::slot() + S::kSlots * i) & 8) != 0;
    const int further = S::kSlots * i / 16 * (upper ? 4 : 8);
    copy_async(to + i * S::kSlots * 128,
               (upper ? source[1] : source[0]) + 2 * further * (upper ? rows[1].stride : rows[0].stride),
               (upper ? at[1] : at[0]) + further < (upper ? limits[1] : limits[0]) ? bytes : 0);
  }
}

template <class T, int D, bool kCoarse, bool kOwnKeys, Part kPart>
__device__ void bring_own(const Arguments& a, const Walk& walk, uint32_t memory) {
  using M = Plan<D, kCoarse>;
  const HktProblem& p = a.p;
  const int key_head = walk.first_head / static_cast<int>(p.heads / p.key_heads);
  const ConstView* const own = kOwnKeys ? p.k : p.q;
  const ConstView& extra = kOwnKeys ? p.v : a.g.dout;
  const int head = kOwnKeys ? key_head : walk.first_head;
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t tiles = memory + group * M::kOwnTiles * M::kOwnTile;
    const int first = walk.own_first + 64 * group;
    bring_rows<D>(tiles, rows_of<const T>(own[0], walk.batch, head), first, walk.limit, p.head_size, own_row);
    if constexpr (kPart != Part::kValues)
      bring_rows<D>(tiles + M::kOwnTile, rows_of<const T>(extra, walk.batch, head), first, walk.limit, p.value_size,
                    own_row);
    if constexpr (kCoarse) bring_coarse_own<T, D>(tiles + 2 * M::kOwnTile, p, own, walk, head, first);
  }
}

// Tiles of the other side into the stages, step by step.
template <class T, int D, bool kCoarse, bool kOwnKeys>
__device__ void bring_others(const Arguments& a, const Walk& walk, uint32_t stages, uint32_t barriers, int& step,
                             Announcer& announcer) {
  using M = Plan<D, kCoarse>;
  const HktProblem& p = a.p;
  const int key_head = walk.first_head / static_cast<int>(p.heads / p.key_heads);
  const ConstView* const others = kOwnKeys ? p.q : p.k;
  const ConstView& other_extra = kOwnKeys ? a.g.dout : p.v;
  const int top = p.levels > 2 ? 2 : 1, limit1 = (walk.limit + 1) / 2, limit2 = p.levels > 2 ? (walk.limit + 3) / 4 : 0;
  for (int head = walk.first_head; head < walk.first_head + walk.heads; ++head) {
    const int other_head = kOwnKeys ? head : key_head;
    const int64_t line = (static_cast<int64_t>(walk.batch) * p.heads + head) * p.tokens;
    const int begin = walk.first * kOther;
    SlotStream<D, kOther> fine(rows_of<const T>(others[0], walk.batch, other_head), begin, p.head_size);
    SlotStream<D, kOther> extra(rows_of<const T>(other_extra, walk.batch, other_head), begin, p.value_size);
    SlotStream<D, 32, kCoarseRows> level1(rows_of<const T>(others[kCoarse ? 1 : 0], walk.batch, other_head), begin / 2,
                                          p.head_size);
    SlotStream<D, 16, kCoarseRows, 32> level2(rows_of<const T>(others[kCoarse ? top : 0], walk.batch, other_head),
                                              begin / 4, p.head_size);
    for (int block = walk.first; block < walk.last; ++block, ++step) {
      const int stage = step % M::kStages, round = step / M::kStages, first = block * kOther;
      if (round > 0) announcer.wait_for_room(M::empty(barriers, stage), (round - 1) & 1);
      const uint32_t tile = stages + stage * M::kStage;
      fine.bring(tile, walk.limit, p.head_size);
      extra.bring(tile + M::kExtra, walk.limit, p.value_size);
      if constexpr (kCoarse) {
        level1.bring(tile + M::kCoarseTile, limit1, p.head_size);
        level2.bring(tile + M::kCoarseTile, limit2, p.head_size);
      }
      if (kOwnKeys && threadIdx.x < kOther) {
        const int slot = static_cast<int>(threadIdx.x), at = first + other_row(slot);
        const int64_t from = line + (at < walk.limit ? at : 0);
        const uint32_t numbers = tile + M::kNumbers + 4 * slot;
        bring_number(numbers, static_cast<const float*>(a.o.lse) + from, at < walk.limit);
        bring_number(numbers + 4 * kOther, a.deltas + from, at < walk.limit);
      }
      announcer.ask(M::full(barriers, stage));
    }
  }
}

template <class T, int D, bool kCoarse, bool kOwnKeys, Part kPart>
__device__ void bring(const Arguments& a, uint32_t memory, uint32_t barriers) {
  using M = Plan<D, kCoarse>;
  int step = 0;
  Announcer announcer;
  Walk walk;
  for (int turn = 0; find_work<kOwnKeys>(a.p, turn, &walk); ++turn) {
    const int buffer = turn % M::kOwnBuffers, round = turn / M::kOwnBuffers;
    if (round > 0) announcer.wait_for_room(M::empty(barriers, M::kStages + buffer), (round - 1) & 1);
    bring_own<T, D, kCoarse, kOwnKeys, kPart>(a, walk, memory + buffer * M::kOwn);
    announcer.ask(M::full(barriers, M::kStages + buffer));
    bring_others<T, D, kCoarse, kOwnKeys>(a, walk, memory + M::kStagesBegin, barriers, step, announcer);
  }
  announcer.finish();
}

}  // namespace
}  // namespace strata::cuda
