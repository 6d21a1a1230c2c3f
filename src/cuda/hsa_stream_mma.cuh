// Streaming attention with mma.sync: what the kernels share. Entries and queries meet in tiles of 16 x 16, a warp a
// tile. A coarse row is loaded once and read for all of its queries or entries.
#pragma once

#include "cuda/device.h"
#include "cuda/hsa_stream.cuh"
#include "cuda/tile16.cuh"

namespace strata::cuda {
namespace {

inline bool has_small_heads(const HsaStreamProblem& p) { return p.head_size <= 64 && p.value_size <= 64; }

// The levels of a kernel made for at most kLevels of them; one level is known to the compiler.
template <int kLevels>
__host__ __device__ inline int levels_of(const HsaStreamProblem& p) {
  return kLevels == 1 ? 1 : p.levels;
}

// Rows of the levels 1 .. level - 1 of kTokens tokens, which start at a multiple of kTokens, a power of two.
template <int kTokens>
__host__ __device__ constexpr int coarse_rows(int level) {
  constexpr int kLog = kTokens == 16 ? 4 : kTokens == 64 ? 6 : 7;
  static_assert(1 << kLog == kTokens);
  return level - 1 <= kLog ? kTokens - (kTokens >> (level - 1)) : kTokens - 2 + level - kLog;
}

// Rows 0 .. count - 1 of a tile, by kThreads threads; zeros for those from `present` on and those that are not real(r).
// first_slot: a multiple of 8; tile: a multiple of 128.
template <class T, int D, int kThreads, class Real>
__device__ inline void load_rows(uint32_t tile, int first_slot, const T* rows, int64_t stride, int count, int present,
                                 int channels, const Real& real) {
  constexpr int kStep = kThreads / (D / 8);  // rows side by side
  const int r0 = static_cast<int>(threadIdx.x) % kThreads / (D / 8), chunk = static_cast<int>(threadIdx.x) % (D / 8);
  if (chunk * 8 >= channels) present = 0;
  const T* from = rows + r0 * stride + chunk * 8;
  const uint32_t to = tile + tile_offset<D>(first_slot + r0, chunk);
#pragma unroll 2
  for (int r = 0; r + r0 < count; r += kStep, from += kStep * stride) {
    const bool there = r + r0 < present && real(r + r0);
    // Row r0 + r of a tile, for multiples r of kStep: the places of its chunks differ from those of row r0 by this.
    const uint32_t swapped = kStep % 8 == 0 ? to : to ^ ((r & 7) << 4);
    cp_async(swapped + r * (D * 2), there ? from : rows, there ? 16 : 0);
  }
}

// 16 rows from `first` on, by a warp; zeros from row `end` on. tile: a multiple of 128.
template <class T, int D>
__device__ inline void load_tile_rows(uint32_t tile, const Rows<const T>& rows, int first, int end, int channels) {
  constexpr int kStep = 32 / (D / 8);
  const int r0 = lane_of_thread() / (D / 8), chunk = lane_of_thread() % (D / 8);
  if (chunk * 8 >= channels) end = 0;
  const T* from = rows.data + (first + r0) * rows.stride + chunk * 8;
  const uint32_t to = tile + tile_offset<D>(r0, chunk);
#pragma unroll
  for (int r = 0; r < kTileRows; r += kStep, from += kStep * rows.stride) {
    const bool there = first + r0 + r < end;
    cp_async((to ^ ((r & 7) << 4)) + r * (D * 2), there ? from : rows.data, there ? 16 : 0);
  }
}

// Rows of a level that stand for tokens first .. first + span - 1, those of tokens below `end` alone.
template <class T, int D, int kThreads, class Real>
__device__ inline void load_level(uint32_t tile, int first_slot, const Rows<const T>& rows, int level, int first,
                                  int span, int end, int channels, const Real& real) {
  const int begin = first >> level, count = ((first + span - 1) >> level) - begin + 1;
  load_rows<T, D, kThreads>(tile, first_slot, rows.data + begin * rows.stride, rows.stride, count,
                            ((end - 1) >> level) - begin + 1, channels, [&](int r) { return real(begin + r); });
}

// Neighbouring entries of a height in shared memory: first .. first + rows - 1, of which those below `end` are there.
struct Piece {
  int height, first, end, rows;
  int slot;  // of its first entry; a multiple of 16
};

// Entries in shared memory: the keys of every level, then the values, `rows` rows each, and their terms in base 2.
template <class T, int D, int kLevels>
struct EntryTiles {
  const StreamKeys<T>& keys;
  uint32_t tiles;
  float* terms;
  int rows;

  static __host__ __device__ int memory(int levels, int rows) { return (levels + 1) * rows * D * 2 + rows * 4; }
  __device__ EntryTiles(const StreamKeys<T>& k, unsigned char* start, int row_count)
      : keys(k),
        tiles(shared_address(start)),
        terms(reinterpret_cast<float*>(start + (levels() + 1) * row_count * D * 2)),
        rows(row_count) {}

  __device__ int levels() const { return levels_of<kLevels>(keys.a.p); }
  __device__ uint32_t key_tile(int level) const { return tiles + level * rows * D * 2; }
  __device__ uint32_t value_tile() const { return key_tile(levels()); }
  // The row of a key tile that entry number e of a piece has.
  __device__ static int key_slot(const Piece& piece, int level, int e) {
    return piece.slot + (piece.height == 0 && kLevels > 1 ? ((piece.first + e) >> level) - (piece.first >> level) : e);
  }

  // The copies are not waited for.
  template <int kThreads>
  __device__ void load(const Piece& piece) const {
    const HsaStreamProblem& p = keys.a.p;
    const int64_t batch = keys.batch, head = keys.key_head;
    if (piece.height == 0) {
      for (int level = 0; level < levels(); ++level)
        load_level<T, D, kThreads>(key_tile(level), piece.slot, rows_of<const T>(p.k[level], batch, head), level,
                                   piece.first, piece.rows, piece.end, p.head_size,
                                   [&](int row) { return keys.is_real(level, row); });
      load_level<T, D, kThreads>(value_tile(), piece.slot, rows_of<const T>(p.v, batch, head), 0, piece.first,
                                 piece.rows, piece.end, p.value_size, [&](int row) { return keys.is_real(0, row); });
    } else {
      const int64_t node = keys.node(piece.height, piece.first);
      const int present = piece.end - piece.first;
      auto real = [](int) { return true; };
      for (int level = 0; level < levels(); ++level)
        load_rows<T, D, kThreads>(key_tile(level), piece.slot, keys.a.rounded_k + keys.key_row(node, level),
                                  int64_t{levels()} * p.head_size, piece.rows, present, p.head_size, real);
      load_rows<T, D, kThreads>(value_tile(), piece.slot, keys.a.rounded_v + node * p.value_size, p.value_size,
                                piece.rows, present, p.value_size, real);
    }
    for (int e = static_cast<int>(threadIdx.x) % kThreads; e < piece.rows; e += kThreads)
      terms[piece.slot + e] =
          piece.first + e < piece.end ? keys.term(piece.height, piece.first + e) * kLog2e : -INFINITY;
  }
};

// What 16 neighbouring queries see of a height: the first of them, and the last.
struct SightOfTile {
  SeenEntries low, high;

  // All of them see all entries from .. from + 15.
  __device__ bool sees_all(int from) const {
    return from >= high.first && from + kTileRows <= low.end &&
           (from + kTileRows <= low.hole_first || from >= high.hole_end);
  }
  // None of them sees one of these.
  __device__ bool sees_none(int from) const { return from >= high.end || from + kTileRows <= low.first; }
};

}  // namespace
}  // namespace strata::cuda
