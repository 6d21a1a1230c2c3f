// Streaming attention with mma.sync, seen from the queries, forward and backward. A block has neighbouring queries, a
// warp 16 of them. The entries that they see at a height are neighbours too. The block loads the entries of all heights
// one after the other into shared memory, as many as it has rows for, and computes; other blocks load meanwhile.
#pragma once

#include "cuda/hsa_stream_mma.cuh"

namespace strata::cuda {
namespace {

// The block of a kernel made for at most kLevels levels. It holds whole rows of all of them.
template <int kLevels>
struct QueryThreads {
  static constexpr int kWarps = kLevels <= 3 ? 4 : 8, kThreads = 32 * kWarps, kRows = kTileRows * kWarps;
  static_assert(kRows >= 1 << (kLevels - 1));
};

// Blocks that share a multiprocessor, as far as registers go.
constexpr int query_blocks(int D, int levels, bool backward) {
  if (levels > 3) return D == 64 && !backward ? 2 : 1;
  return D == 128 ? 2 : levels == 1 || !backward ? 4 : 3;
}

// How a block uses its shared memory: coarse queries, and `rows` rows of entries.
struct QueryShape {
  int rows, memory;  // memory: bytes; 0: it does not fit
};
template <int D, int kLevels>
__host__ __device__ int query_memory(int levels) {
  return coarse_rows<QueryThreads<kLevels>::kRows>(levels) * D * 2;
}
template <int D, int kLevels>
QueryShape query_shape(int levels) {
  // Many rows as long as several blocks fit into a multiprocessor. 160: b 16, near 2 and 64k tokens at once.
  const int several = 56 << 10;
  // Backward, the sums of two coarse levels are left where all this was.
  const int least = levels == 1 ? 0 : QueryThreads<kLevels>::kRows * D * 4;
  for (const QueryShape shape : {QueryShape{160, several}, QueryShape{112, several}, QueryShape{80, several},
                                 QueryShape{48, 80 << 10}, QueryShape{32, 1 << 20}, QueryShape{16, 1 << 20}}) {
    const int memory =
        std::max(least, query_memory<D, kLevels>(levels) + (levels + 1) * shape.rows * D * 2 + shape.rows * 4);
    if (memory <= std::min(shape.memory, shared_memory_per_block())) return {shape.rows, memory};
  }
  return {};
}

// Rows of a tile are queries in an order in which a lane's two are neighbours, and so children of one row of level 1.
__device__ inline int query_of_row(int row) { return row % 8 * 2 + row / 8; }
__device__ inline int tile_query(int half) { return lane_of_thread() / 4 * 2 + half; }

// The queries of a block.
template <class T, int D, int kLevels>
struct QueryBlock {
  using Tiles = EntryTiles<T, D, kLevels>;
  using Threads = QueryThreads<kLevels>;
  const StreamHead<T>& head;
  int first, last, mine;  // first and last query of the block, the first one of the warp
  uint32_t coarse;        // rows of the levels above the first, level after level
  uint32_t q[D / 16][4];  // rows of the warp, of the first level
  Tiles tiles;

  __device__ QueryBlock(const StreamHead<T>& h, QueryShape shape, int tile, unsigned char* memory)
      : head(h),
        first(tile * Threads::kRows),
        last(min(first + Threads::kRows, h.tokens) - 1),
        mine(first + warp_of_thread() * kTileRows),
        coarse(shared_address(memory)),
        tiles(h, memory + query_memory<D, kLevels>(levels_of<kLevels>(h.a.p)), shape.rows) {
    const HsaStreamProblem& p = h.a.p;
    load_queries(q, p.q[0], p.head_size);
    for (int level = 1; level < levels(); ++level)
      load_level<T, D, Threads::kThreads>(q_tile(level), 0, rows_of<const T>(p.q[level], h.batch, h.head), level, first,
                                          Threads::kRows, last + 1, p.head_size, [](int) { return true; });
  }
  // The warp's rows of a tensor of the queries, as left operands.
  __device__ void load_queries(uint32_t (&left)[D / 16][4], const ConstView& view, int channels) const {
    load_operand<T, D>(left, rows_of<const T>(view, head.batch, head.head), mine, last + 1, channels,
                       [](int half) { return tile_query(half); });
  }
  __device__ int levels() const { return levels_of<kLevels>(head.a.p); }
  __device__ uint32_t q_tile(int level) const { return coarse + coarse_rows<Threads::kRows>(level) * D * 2; }

  // The first entries that the block sees from a height on; rows and slot are not known yet.
  __device__ Piece first_of(int height) const {
    for (; height < head.a.heights.count; ++height) {
      const int begin = head.seen(height, head.ancestor(height, first)).first,
                end = head.seen(height, head.ancestor(height, last)).end;
      if (begin < end) return {height, begin, end, 0, 0};
    }
    return {height, 0, 0, 0, 0};
  }
  // f(piece) for the pieces that the rows have room for, from `next` on; returns where the next ones begin.
  template <class F>
  __device__ Piece each_piece(Piece next, const F& f) const {
    int slot = 0;
    while (slot < tiles.rows && next.height < head.a.heights.count) {
      const int wanted = (next.end - next.first + kTileRows - 1) / kTileRows * kTileRows;
      next.slot = slot;
      next.rows = min(wanted, tiles.rows - slot);
      f(next);
      slot += next.rows;
      next.first += next.rows;
      if (next.rows == wanted) next = first_of(next.height + 1);
    }
    return next;
  }

  // The node of a height above this lane's query.
  __device__ int ancestor(int height, int half) const {
    return head.ancestor(height, min(mine + tile_query(half), last));
  }
  // What the 16 queries of the warp see at a height.
  __device__ SightOfTile sight(int height) const {
    auto seen_by = [&](int i) { return head.seen(height, head.ancestor(height, i)); };
    SightOfTile x{seen_by(min(mine, last)), seen_by(min(mine + kTileRows - 1, last))};
    if (mine > last) x.high.end = 0;
    return x;
  }

  // 16 entries of a piece, from number `sub` on.
  struct Range {
    const QueryBlock& queries;
    const Piece& piece;
    int sub;
    __device__ int begin() const { return piece.first + sub; }
    __device__ int key_slot(int level, int e) const { return Tiles::key_slot(piece, level, sub + e); }
    __device__ uint32_t key_tile(int level) const { return queries.tiles.key_tile(level); }
    __device__ uint32_t value_tile() const { return queries.tiles.value_tile() + (piece.slot + sub) * D * 2; }
    // Where entry y's position term for a query of this lane is in the table; -1: it has none.
    __device__ int64_t position(int half, int y) const {
      return queries.head.position(piece.height, queries.ancestor(piece.height, half), begin() + y);
    }
  };

  // f(scores in base 2, range) for every 16 entries of which this warp sees one; scores of others are -inf.
  template <class F>
  __device__ void each_tile(const F& f) const {
    const int heights = head.a.heights.count;
    for (Piece next = first_of(0); next.height < heights;) {
      const Piece now = next;
      next = each_piece(now, [&](const Piece& piece) { tiles.template load<Threads::kThreads>(piece); });
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      each_piece(now, [&](const Piece& piece) { compute(piece, f); });
      if (next.height < heights) __syncthreads();
    }
  }

  template <class F>
  __device__ void compute(const Piece& piece, const F& f) const {
    const SightOfTile x = sight(piece.height);
    const int to = min(piece.rows, x.high.end - piece.first);
    for (int sub = max(0, x.low.first - piece.first) / kTileRows * kTileRows; sub < to; sub += kTileRows) {
      const Range range{*this, piece, sub};
      float s[2][4];
      scores(s, range);
      if (head.has_positions(piece.height)) {
        each_of_tile([&](int half, int n, int i, int y) {
          if (sees(range, half, y)) s[n][i] += head.position_bias(range.position(half, y)) * kLog2e;
        });
      }
      if (!x.sees_all(range.begin())) {
        each_of_tile([&](int half, int n, int i, int y) {
          if (!sees(range, half, y)) s[n][i] = -INFINITY;
        });
      }
      f(s, range);
    }
  }
  __device__ bool sees(const Range& range, int half, int y) const {
    return head.seen(range.piece.height, ancestor(range.piece.height, half)).contains(range.begin() + y);
  }
  // Products of all levels, with their weights and the scale, and the terms of the entries.
  __device__ void scores(float (&s)[2][4], const Range& range) const {
    const float scale = static_cast<float>(head.a.p.scale) * kLog2e;
    const float* const terms = tiles.terms + range.piece.slot + range.sub + 2 * (lane_of_thread() % 4);
    const float2 term[2] = {*reinterpret_cast<const float2*>(terms), *reinterpret_cast<const float2*>(terms + 8)};
    float x[2][4] = {};
    by_right_rows<T, D>(x, q, range.key_tile(0), range.key_slot(0, right_lane_row()));
    const float weight = head.level_weight(0) * scale;
    each_of_tile([&](int, int n, int i, int) { s[n][i] = weight * x[n][i] + (i % 2 == 0 ? term[n].x : term[n].y); });
    const int row = warp_of_thread() * kTileRows + query_of_row(left_lane_row());
    for (int level = 1; level < levels(); ++level) {
      float y[2][4] = {};
      rows_by_rows<T, D>(y, q_tile(level), row >> level, range.key_tile(level),
                         range.key_slot(level, right_lane_row()));
      const float w = head.level_weight(level) * scale;
      each_of_tile([&](int, int n, int i, int) { s[n][i] += w * y[n][i]; });
    }
  }
};

// One launch over all tiles of queries, `passes` times.
template <int D, int kLevels, class T, class Kernel>
cudaError_t launch_queries(Kernel kernel, const StreamArgs<T>& a, int passes, cudaStream_t stream) {
  using Threads = QueryThreads<kLevels>;
  const QueryShape shape = query_shape<D, kLevels>(a.p.levels);
  const int tiles = static_cast<int>((a.p.tokens + Threads::kRows - 1) / Threads::kRows);
  if (const cudaError_t e = allow_shared_memory(kernel, shape.memory); e != cudaSuccess) return e;
  const dim3 blocks(blocks_for(a.p.batch * a.p.heads * tiles, 1), passes);
  kernel<<<blocks, Threads::kThreads, shape.memory, stream>>>(a, tiles, shape);
  return cudaGetLastError();
}

// run(D, kLevels, kDrop), as constants: the kernels that a problem takes. With dropout those of all levels serve any
// number of them but one.
template <class Run>
auto with_query_kernels(const HsaStreamProblem& p, const Run& run) {
  auto with_levels = [&](auto d) {
    const std::integral_constant<int, kMaxLevels> all;
    if (p.dropout.probability > 0)
      return p.levels == 1 ? run(d, std::integral_constant<int, 1>{}, std::true_type()) : run(d, all, std::true_type());
    if (p.levels == 1) return run(d, std::integral_constant<int, 1>{}, std::false_type());
    return p.levels <= 3 ? run(d, std::integral_constant<int, 3>{}, std::false_type()) : run(d, all, std::false_type());
  };
  return has_small_heads(p) ? with_levels(std::integral_constant<int, 64>{})
                            : with_levels(std::integral_constant<int, 128>{});
}

}  // namespace
}  // namespace strata::cuda
