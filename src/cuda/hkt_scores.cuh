// Scores of all levels on one tile, in registers: every coarse product is computed once, at its own resolution, and
// becomes the start of the accumulators of its finer scores.
//
// That needs no exchange between threads, because rows and keys of a tile may stand in any order. A warp has 32 query
// rows, in two products of 16: slot r of product a is row 2r + a, so both have row r of level 1 as their parent. Of
// N product tiles of 8 keys, slot s of tile n is key N s + n, so tiles 2m and 2m + 1 have slot s of tile m of the next
// level as their parent. Levels above the first take the rows of level 1's products, each repeated; once a level has
// one product tile, keys of the levels above it are repeated as well. Tiles in shared memory are stored in the order
// of slots.
//
// The convex weights are applied in float32: the accumulators hold S_l = sum_{m >= l} (a_m / a_l) <q^(m), k^(m)>, and
// going down a level multiplies by a_{l+1} / a_l. A weight of zero counts as 2^-60.
#pragma once

#include "base/hkt_rows.h"
#include "cuda/hkt_kernels.h"
#include "cuda/tile.cuh"

namespace strata::cuda {

// The row of `out` that number `line` of lse belongs to.
struct LineRow {
  int64_t row, head, batch;
  bool packed;
  __device__ LineRow(const HktProblem& p, int64_t line) : packed(p.q[0].begins != nullptr) {
    const int64_t rows = packed ? p.packed_rows : p.tokens;
    row = line % rows;
    head = line / rows % p.heads;
    batch = line / rows / p.heads;
  }
  // Packed, rows are counted from the first sequence.
  template <class T, class AnyView>
  __device__ Rows<T> rows(AnyView view) const {
    if (packed) view.begins = nullptr;
    return rows_of<T>(view, batch, head);
  }
};

// What tiles of one sequence need to know of its two sides. All that the problem says is read where it is, as it costs
// no registers there.
struct SequenceLimits {
  int queries, keys;  // real tokens

  __device__ SequenceLimits() = default;
  __device__ SequenceLimits(const HktProblem& p, int64_t batch)
      : queries(static_cast<int>(length_of(query_side(p), batch))),
        keys(static_cast<int>(length_of(key_side(p), batch))) {}

  // Rows in memory, padding included.
  __device__ int query_rows(const HktProblem& p) const {
    return p.q[0].begins != nullptr ? queries : static_cast<int>(p.tokens);
  }
  __device__ int key_rows(const HktProblem& p) const {
    return p.k[0].begins != nullptr ? keys : static_cast<int>(p.key_tokens);
  }
  __device__ static int left(const HktProblem& p) { return static_cast<int>(p.window_left); }
  __device__ static int right(const HktProblem& p) { return static_cast<int>(p.window_right); }

  // Keys first .. end - 1 are what a query sees.
  struct Keys {
    int first, end;
    __device__ bool has(int key) const { return key >= first && key < end; }
    // Which of `count` neighbours from `from` on are among them, a bit each; at most 31.
    __device__ uint32_t bits(int from, int count) const {
      const int low = min(max(first - from, 0), count), high = min(max(end - from, low), count);
      return (1u << high) - (1u << low);
    }
  };
  __device__ Keys visible_keys(const HktProblem& p, int query) const {
    if (query >= queries) return {0, 0};
    return {query - left(p), min(keys, query + right(p) + 1)};
  }
  // Whether some query of first .. first + count - 1 does not see some key of first_key .. first_key + key_count - 1.
  __device__ bool is_edge(const HktProblem& p, int first, int count, int first_key, int key_count) const {
    return first + count > queries || first_key + key_count > keys || first_key + key_count - 1 > first + right(p) ||
           first_key < first + count - 1 - left(p);
  }
  // Queries first .. end - 1 are those that see a key.
  __device__ Keys seeing_queries(const HktProblem& p, int key) const {
    if (key >= keys) return {0, 0};
    return {key - right(p), min(queries, key + left(p) + 1)};
  }
  // Tiles of `size` keys of which every query of first .. first + count - 1 sees every key, begin .. end - 1, and the
  // other way round. Others are edges.
  __device__ int2 full_key_tiles(const HktProblem& p, int first, int count, int size) const {
    if (first + count > queries) return make_int2(0, 0);
    return make_int2((max(0, first + count - 1 - left(p)) + size - 1) / size, min(keys, first + right(p) + 1) / size);
  }
  __device__ int2 full_query_tiles(const HktProblem& p, int first, int count, int size) const {
    if (first + count > keys) return make_int2(0, 0);
    return make_int2((max(0, first + count - 1 - right(p)) + size - 1) / size,
                     min(queries, first + left(p) + 1) / size);
  }
  // Tiles of `size` keys that rows first .. first + count - 1 of the queries see, begin .. end - 1, and the other way
  // round.
  __device__ int2 key_tiles(const HktProblem& p, int first, int count, int size) const {
    if (first >= queries) return make_int2(0, 0);
    const int last = min(first + count, queries) - 1, end = min(keys, last + right(p) + 1);
    const int begin = max(0, first - left(p)) / size;
    return make_int2(begin, max(begin, (end + size - 1) / size));
  }
  __device__ int2 query_tiles(const HktProblem& p, int first, int count, int size) const {
    if (first >= keys) return make_int2(0, 0);
    const int last = min(first + count, keys) - 1, end = min(queries, last + left(p) + 1);
    const int begin = max(0, first - right(p)) / size;
    return make_int2(begin, max(begin, (end + size - 1) / size));
  }
};
// Where early work tiles have more work than late ones: of how many heads the longest tiles come first
// (next_line_tile() in pipeline.cuh), as many as fit into the caches. 0: all tiles are alike.
__device__ inline unsigned section_of(const HktProblem& p) {
  const bool uneven = p.causal && p.window_left + 1 >= p.tokens;
  return uneven ? max(1u, (1u << 17) / max(1u, static_cast<unsigned>(p.tokens))) : 0u;
}
// Rows of a level that has `tokens` at level 0.
__host__ __device__ constexpr int level_rows(int tokens, int level) { return (tokens + (1 << level) - 1) >> level; }

// Where the rows of a level begin in a tile that has `rows` of level 0, all levels one after the other. Every level has
// room for at least 16.
__host__ __device__ constexpr int level_begin(int rows, int level) {
  int begin = 0;
  for (int l = 0; l < level; ++l) begin += rows >> l > 16 ? rows >> l : 16;
  return begin;
}

// Row r of a query tile, and key j of level `level` of kTiles product tiles: where they are stored.
__host__ __device__ constexpr int query_slot(int level, int row) {
  return level == 0 ? (row & ~31) + (row & 1) * 16 + (row & 31) / 2 : row;
}
template <int kTiles>
__host__ __device__ constexpr int key_slot(int level, int key) {
  const int tiles = kTiles >> level;
  return tiles <= 1 ? key : (key & ~(8 * tiles - 1)) + (key & (tiles - 1)) * 8 + (key & (8 * tiles - 1)) / tiles;
}
// The other way round, at level 0: the row of slot r of product a, the key of slot s of product tile n.
__host__ __device__ constexpr int row_of_slot(int a, int r) { return 2 * r + a; }
template <int kTiles>
__host__ __device__ constexpr int key_of_slot(int n, int s) {
  return kTiles * s + n;
}

// Another order, of the sm_90 kernels: of 16 slots, g and g + 8 are rows 2g and 2g + 1, so that the two rows of a
// thread have one parent. Several coarse levels may share a tile of 64 slots: of 16, eight are rows of one level, the
// parents of all threads' rows, four of the next, two of the one after it, and one of the last. A thread gets what it
// needs of these from the lane that has it: packed_lane().
__host__ __device__ constexpr int paired_row(int slot) { return (slot & ~15) + 2 * (slot & 7) + (slot >> 3 & 1); }
__host__ __device__ constexpr int packed_level(int slot) {  // above the first of the tile; 4: the slot is empty
  const int s = slot & 15;
  return s < 8 ? 0 : s < 12 ? 1 : s < 14 ? 2 : s < 15 ? 3 : 4;
}
__host__ __device__ constexpr int packed_row(int slot) {
  const int level = packed_level(slot);
  return ((slot >> 4) << (3 - level)) + (slot & 15) - (16 - (16 >> level));
}
// Of the row that stands for this lane's rows at packed level 1, 2 or 3: its second row, slots 8 .. 15, has it.
__device__ inline int packed_lane(int level) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
  return (8 - (16 >> level) + (g >> level)) * 4 + lane % 4;
}

// Loads rows first .. first + kRows - 1 of level 0, and the same tokens of all other levels. slot(l, r): where row r of
// level l is stored.
template <class T, int D, int kThreads, int kRows, class Slot>
__device__ inline void load_levels(uint32_t tile, const ConstView* views, int levels, int64_t batch, int64_t head,
                                   int first, int limit, int channels, bool aligned, const Slot& slot) {
#pragma unroll
  for (int l = 0; l < kMmaLevels; ++l) {
    if (l >= levels) break;
    load_tile<D, kThreads>(tile + level_begin(kRows, l) * D * 2, rows_of<const T>(views[l], batch, head), first >> l,
                           kRows >> l, level_rows(limit, l), channels, aligned,
                           [&slot, l](int r) { return slot(l, r); });
  }
}

struct LevelWeights {
  float down[kMmaLevels];  // a_{l+1} / a_l
  float finest;            // a_0
};

__device__ inline LevelWeights level_weights(const float* a, int levels) {
  LevelWeights w;
  float safe[kMmaLevels];
#pragma unroll
  for (int l = 0; l < kMmaLevels; ++l) {
    const float weight = l < levels ? a[l] : 0.0f;
    safe[l] = copysignf(fmaxf(fabsf(weight), 8.7e-19f), weight);
  }
#pragma unroll
  for (int l = 0; l + 1 < kMmaLevels; ++l) w.down[l] = safe[l + 1] / safe[l];
  w.down[kMmaLevels - 1] = 0;
  w.finest = safe[0];
  return w;
}

// What a warp multiplies: queries of a tile with kRows rows from row `row` on, keys of a tile with kKeys keys from key
// `key` on, all of level 0.
template <class T, int D, int kRows, int kKeys, int kTiles>
struct ScoreTile {
  static constexpr int kLogTiles = kTiles == 8 ? 3 : kTiles == 4 ? 2 : 1;
  uint32_t queries, keys;
  int row, key;

  // Where this lane reads its part of the products of channels 0..15; channel 16 kk is at address ^ (kk << 5).
  __device__ uint32_t query_address(int level) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int slot = level == 0 ? lane % 16 : (lane % 16) >> (level - 1);
    return queries + tile_offset<D>(level_begin(kRows, level) + (row >> level) + slot, lane / 16);
  }
  __device__ uint32_t key_address(int level) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, tiles = kTiles >> level;
    const int first = level_begin(kKeys, level) + (key >> level);
    int slot = lane % 8 + (tiles > 1 ? lane / 16 * 8 : 0);
    if (tiles == 0) slot = (lane % 8) >> (level - kLogTiles);
    return keys + tile_offset<D>(first + slot, (lane / 8) % 2);
  }

  // Level kLevel and above, into acc.
  template <int kLevel, int kCount>
  __device__ void coarse(float (&acc)[kCount][4], int levels, const LevelWeights& w) const {
    start(acc);
    if constexpr (kLevel + 1 < kMmaLevels) {
      if (levels > kLevel + 1) {
        float above[kCount > 1 ? kCount / 2 : 1][4];
        coarse<kLevel + 1>(above, levels, w);
        start_from(acc, above, w.down[kLevel]);
      }
    }
    const uint32_t query = query_address(kLevel), key_at = key_address(kLevel);
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      uint32_t q[4], k[4];
      ldmatrix(q, query ^ (kk << 5));
#pragma unroll
      for (int n = 0; n < kCount; n += 2) {
        ldmatrix(k, (key_at ^ (kk << 5)) + n * 8 * D * 2);
        mma_sync(acc[n], q, k[0], k[1], T());
        if constexpr (kCount > 1) mma_sync(acc[n + 1], q, k[2], k[3], T());
      }
    }
  }

  // All levels: acc[a][n] becomes S_0 of product a and product tile n.
  __device__ void scores(float (&acc)[2][kTiles][4], int levels, const LevelWeights& w) const {
    start(acc[0]);
    start(acc[1]);
    if (levels > 1) {
      float above[kTiles / 2][4];
      coarse<1>(above, levels, w);
      start_from(acc[0], above, w.down[0]);
      start_from(acc[1], above, w.down[0]);
    }
    finest(acc, query_address(0), key_address(0));
  }

  // acc += the product of level 0; serves other operands of the same shape as well.
  __device__ static void finest(float (&acc)[2][kTiles][4], uint32_t query, uint32_t key_at) {
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      uint32_t q[2][4], k[4];
      ldmatrix(q[0], query ^ (kk << 5));
      ldmatrix(q[1], (query ^ (kk << 5)) + 16 * D * 2);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        ldmatrix(k, (key_at ^ (kk << 5)) + n * 8 * D * 2);
#pragma unroll
        for (int a = 0; a < 2; ++a) {
          mma_sync(acc[a][n], q[a], k[0], k[1], T());
          mma_sync(acc[a][n + 1], q[a], k[2], k[3], T());
        }
      }
    }
  }

  template <int kCount>
  __device__ static void start(float (&acc)[kCount][4]) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] = 0;
    }
  }
  template <int kFine, int kCoarse>
  __device__ static void start_from(float (&fine)[kFine][4], const float (&coarse)[kCoarse][4], float down) {
#pragma unroll
    for (int n = 0; n < kFine; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) fine[n][e] = coarse[n * kCoarse / kFine][e] * down;
    }
  }
};

}  // namespace strata::cuda
