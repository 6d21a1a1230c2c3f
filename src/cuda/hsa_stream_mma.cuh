// Streaming attention with mma.sync: what the kernels of the queries, forward and backward, share. A block has 128
// neighbouring queries, a warp 16 of them. The entries that they see at a height are neighbours too; the block loads
// them a chunk at a time, while it computes with the chunk before. A coarse row is loaded once and read for all of its
// queries or entries.
#pragma once

#include "cuda/device.h"
#include "cuda/hsa_stream.cuh"
#include "cuda/tile16.cuh"

namespace strata::cuda {
namespace {

constexpr int kQueryWarps = 8, kQueryThreads = 32 * kQueryWarps, kQueryRows = kTileRows * kQueryWarps;

inline bool has_small_heads(const HsaStreamProblem& p) { return p.head_size <= 64 && p.value_size <= 64; }

// Rows of the levels below `level` of a tile of 128 queries, which starts at a multiple of 128.
__host__ __device__ constexpr int query_rows(int level) { return 2 * kQueryRows - (2 * kQueryRows >> level); }

// Rows of the levels 1 .. level - 1 that 16 queries share in.
__host__ __device__ constexpr int coarse_rows(int level) { return level <= 4 ? 16 - (32 >> level) : 10 + level; }

// How a block's shared memory is used: chunks of `rows` entries, in `stages` places.
struct QueryShape {
  int rows, stages, memory;  // memory: bytes; 0: it does not fit
};
inline int stage_memory(int levels, int rows, int D) { return (levels + 1) * rows * D * 2 + rows * 4; }
inline QueryShape query_shape(const HsaStreamProblem& p, bool backward) {
  const int D = has_small_heads(p) ? 64 : 128;
  const int queries = query_rows(p.levels) * D * 2;
  const int gradients = backward ? kQueryRows * D * 2 + kQueryWarps * coarse_rows(p.levels) * D * 4 : 0;
  // Large chunks as long as several blocks fit into a multiprocessor.
  for (const QueryShape shape : {QueryShape{64, 2, 80 << 10}, QueryShape{32, 2, 1 << 20}, QueryShape{32, 1, 1 << 20},
                                 QueryShape{16, 1, 1 << 20}}) {
    const int memory = queries + gradients + shape.stages * stage_memory(p.levels, shape.rows, D);
    if (memory <= std::min(shape.memory, shared_memory_per_block())) return {shape.rows, shape.stages, memory};
  }
  return {};
}

// Rows 0 .. count - 1 of a tile, by all threads; zeros for those from `present` on and those that are not real(r).
template <class T, int D, int kThreads, class Real>
__device__ inline void load_rows(uint32_t tile, const T* rows, int64_t stride, int count, int present, int channels,
                                 const Real& real) {
  constexpr int kStep = kThreads / (D / 8);  // rows side by side
  int r = static_cast<int>(threadIdx.x) / (D / 8);
  const int chunk = static_cast<int>(threadIdx.x) % (D / 8);
  if (chunk * 8 >= channels) present = 0;
  const T* from = rows + r * stride + chunk * 8;
#pragma unroll 1
  for (; r < count; r += kStep, from += kStep * stride) {
    const bool there = r < present && real(r);
    cp_async(tile + tile_offset<D>(r, chunk), there ? from : rows, there ? 16 : 0);
  }
}

// Rows of a level of the leaves that stand for tokens first .. first + span - 1, those of tokens below `end` alone.
template <class T, int D, int kThreads, class Real>
__device__ inline void load_level(uint32_t tile, const Rows<const T>& rows, int level, int first, int span, int end,
                                  int channels, const Real& real) {
  const int begin = first >> level, count = ((first + span - 1) >> level) - begin + 1;
  load_rows<T, D, kThreads>(tile, rows.data + begin * rows.stride, rows.stride, count, ((end - 1) >> level) - begin + 1,
                            channels, [&](int r) { return real(begin + r); });
}

// The levels of a kernel made for at most kLevels of them; one level is known to the compiler.
template <int kLevels>
__device__ inline int levels_of(const HsaStreamProblem& p) {
  return kLevels == 1 ? 1 : p.levels;
}

// A chunk of entries in shared memory: the keys of every level, then the values, `rows` rows each, and their terms.
template <class T, int D, int kLevels>
struct EntryTiles {
  const StreamKeys<T>& keys;
  uint32_t tiles;
  float* terms;
  int rows;

  __device__ int levels() const { return levels_of<kLevels>(keys.a.p); }
  __device__ uint32_t key_tile(int level) const { return tiles + level * rows * D * 2; }
  __device__ uint32_t value_tile() const { return key_tile(levels()); }
  // The row of a key tile that entry `first` + e has, in a chunk from `first` on.
  __device__ static int key_slot(int height, int first, int level, int e) {
    return height == 0 && kLevels > 1 ? ((first + e) >> level) - (first >> level) : e;
  }

  // Entries first .. first + rows - 1, those below `end` alone; the copies are not waited for.
  template <int kThreads>
  __device__ void load(int height, int first, int end) const {
    const HsaStreamProblem& p = keys.a.p;
    const int64_t batch = keys.batch, head = keys.key_head;
    if (height == 0) {
      for (int level = 0; level < levels(); ++level)
        load_level<T, D, kThreads>(key_tile(level), rows_of<const T>(p.k[level], batch, head), level, first, rows, end,
                                   p.head_size, [&](int row) { return keys.is_real(level, row); });
      load_level<T, D, kThreads>(value_tile(), rows_of<const T>(p.v, batch, head), 0, first, rows, end, p.value_size,
                                 [&](int row) { return keys.is_real(0, row); });
    } else {
      const int64_t node = keys.node(height, first);
      auto real = [](int) { return true; };
      for (int level = 0; level < levels(); ++level)
        load_rows<T, D, kThreads>(key_tile(level), keys.a.rounded_k + keys.key_row(node, level),
                                  int64_t{levels()} * p.head_size, rows, end - first, p.head_size, real);
      load_rows<T, D, kThreads>(value_tile(), keys.a.rounded_v + node * p.value_size, p.value_size, rows, end - first,
                                p.value_size, real);
    }
    const int mine = first + static_cast<int>(threadIdx.x);
    if (static_cast<int>(threadIdx.x) < rows) terms[threadIdx.x] = mine < end ? keys.term(height, mine) : -INFINITY;
  }
};

// Where a warp is: 16 entries from `begin` on, rows `sub` .. of a chunk.
template <class T, int D, int kLevels>
struct EntryRange {
  const EntryTiles<T, D, kLevels>& tiles;
  int height, chunk, sub;
  __device__ int begin() const { return chunk + sub; }
  __device__ int key_slot(int level, int e) const { return tiles.key_slot(height, chunk, level, sub + e); }
  __device__ uint32_t key_tile(int level) const { return tiles.key_tile(level); }
  __device__ uint32_t value_tile() const { return tiles.value_tile() + sub * D * 2; }
};

// The queries of a block.
template <class T, int D, int kLevels>
struct QueryBlock {
  using Tiles = EntryTiles<T, D, kLevels>;
  using Range = EntryRange<T, D, kLevels>;
  const StreamHead<T>& head;
  QueryShape shape;
  int first, last, mine;  // first and last query of the block, the first one of the warp
  uint32_t q;             // its rows, level after level
  unsigned char* stages;

  __device__ QueryBlock(const StreamHead<T>& h, QueryShape s, int first_query, unsigned char* memory, int before_stages)
      : head(h),
        shape(s),
        first(first_query),
        last(static_cast<int>(min(int64_t{first_query} + kQueryRows, h.a.p.tokens)) - 1),
        mine(first_query + warp_of_thread() * kTileRows),
        q(shared_address(memory)),
        stages(memory + before_stages) {
    const HsaStreamProblem& p = h.a.p;
    for (int level = 0; level < levels(); ++level)
      load_level<T, D, kQueryThreads>(q_tile(level), rows_of<const T>(p.q[level], h.batch, h.head), level, first,
                                      kQueryRows, last + 1, p.head_size, [](int) { return true; });
  }
  __device__ int levels() const { return levels_of<kLevels>(head.a.p); }
  __device__ uint32_t q_tile(int level) const { return q + query_rows(level) * D * 2; }
  __device__ Tiles stage(int which) const {
    unsigned char* const start = stages + which * ((levels() + 1) * shape.rows * D * 2 + shape.rows * 4);
    return {head, shared_address(start), reinterpret_cast<float*>(start + (levels() + 1) * shape.rows * D * 2),
            shape.rows};
  }

  struct Chunk {
    int height, first, end;  // end: of all entries that the block sees at this height
  };
  __device__ Chunk chunks_from(int height) const {
    for (; height < head.a.heights.count; ++height) {
      const int begin = head.seen(height, head.ancestor(height, first)).first,
                end = head.seen(height, head.ancestor(height, last)).end;
      if (begin < end) return {height, begin, end};
    }
    return {height, 0, 0};
  }
  __device__ Chunk after(const Chunk& c) const {
    return c.first + shape.rows < c.end ? Chunk{c.height, c.first + shape.rows, c.end} : chunks_from(c.height + 1);
  }

  // What the two queries of this lane see at a height.
  struct Sight {
    int ancestor[2];
    SeenEntries seen[2];
    int64_t position_row[2];
    int warp_first, warp_end;  // of all 16
  };
  __device__ Sight sight(int height) const {
    Sight x;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      x.ancestor[half] = head.ancestor(height, min(mine + tile_row(half), last));
      x.seen[half] = head.seen(height, x.ancestor[half]);
      x.position_row[half] = head.has_positions(height) ? head.position_row(height, x.ancestor[half]) : 0;
    }
    x.warp_first = __shfl_sync(~0u, x.seen[0].first, 0);
    x.warp_end = mine <= last ? __shfl_sync(~0u, x.seen[1].end, 31) : 0;
    return x;
  }

  // f(scores, range, position(half, column)) for every 16 entries of which this warp sees one.
  template <class F>
  __device__ void each_tile(const F& f) const {
    const int heights = head.a.heights.count;
    Chunk now = chunks_from(0);
    Sight seen = sight(0);
    if (shape.stages == 2) load(now, 0);
    for (int turn = 0; now.height < heights; ++turn) {
      const Chunk next = after(now);
      if (shape.stages == 2) {
        if (next.height < heights) {
          load(next, (turn + 1) % 2);
        } else {
          cp_async_commit();
        }
        cp_async_wait<1>();
      } else {
        load(now, 0);
        cp_async_wait<0>();
      }
      __syncthreads();
      compute(now, seen, stage(shape.stages == 2 ? turn % 2 : 0), f);
      __syncthreads();
      if (next.height != now.height && next.height < heights) seen = sight(next.height);
      now = next;
    }
  }
  __device__ void load(const Chunk& c, int which) const {
    stage(which).template load<kQueryThreads>(c.height, c.first, c.end);
    cp_async_commit();
  }

  template <class F>
  __device__ void compute(const Chunk& c, const Sight& x, const Tiles& tiles, const F& f) const {
    for (int sub = 0; sub < shape.rows && c.first + sub < c.end; sub += kTileRows) {
      const Range range{tiles, c.height, c.first, sub};
      if (range.begin() >= x.warp_end || range.begin() + kTileRows <= x.warp_first) continue;
      float s[2][4] = {};
      add_scores(s, range);
      auto position = [&](int half, int y) { return x.position_row[half] + head.position_column(range.begin() + y); };
      const bool positioned = head.has_positions(c.height);
      each_of_tile([&](int half, int n, int i, int y) {
        const int entry = range.begin() + y;
        const bool seen = x.seen[half].contains(entry);
        if (positioned && seen && (c.height > 0 || entry != x.ancestor[half]))
          s[n][i] += head.position_bias(position(half, y));
        s[n][i] = seen ? s[n][i] + tiles.terms[sub + y] : -INFINITY;
      });
      f(s, range, [&](int half, int y) {
        const bool own = c.height == 0 && range.begin() + y == x.ancestor[half];
        return positioned && !own ? position(half, y) : int64_t{-1};
      });
    }
  }
  // Products of all levels, with their weights and the scale.
  __device__ void add_scores(float (&s)[2][4], const Range& range) const {
    const int row = warp_of_thread() * kTileRows + left_lane_row();
    for (int level = 0; level < levels(); ++level) {
      float x[2][4] = {};
      rows_by_rows<T, D>(x, q_tile(level), row >> level, range.key_tile(level),
                         range.key_slot(level, right_lane_row()));
      const float weight = head.level_weight(level) * static_cast<float>(head.a.p.scale);
      each_of_tile([&](int, int n, int i, int) { s[n][i] += weight * x[n][i]; });
    }
  }
};

// One launch over all tiles of queries.
template <class T, class Kernel>
cudaError_t launch_queries(Kernel kernel, const StreamArgs<T>& a, QueryShape shape, cudaStream_t stream) {
  const int tiles = static_cast<int>((a.p.tokens + kQueryRows - 1) / kQueryRows);
  if (const cudaError_t e = allow_shared_memory(kernel, shape.memory); e != cudaSuccess) return e;
  kernel<<<blocks_for(a.p.batch * a.p.heads * tiles, 1), kQueryThreads, shape.memory, stream>>>(a, tiles, shape);
  return cudaGetLastError();
}

}  // namespace
}  // namespace strata::cuda
