// Streaming HSA with mma.sync. A warp has 16 neighbouring queries; at every height, those see at most a few tiles of 16
// entries (with b = 16 exactly one), some of them masked.
#pragma once

#include "cuda/hsa_stream.cuh"
#include "cuda/tile16.cuh"

namespace strata::cuda {
namespace {

constexpr int kQueryWarps = 4;

enum Tile { kQ, kK, kV, kDout };

// Rows first .. first + 15 of a dense or strided array, those of `real` (bits) only; the others become zeros.
template <class T, int D>
__device__ inline void load_rows(uint32_t tile, const T* rows, int64_t stride, unsigned real, int channels) {
  constexpr int kStep = 32 / (D / 8);  // rows side by side
  const int r0 = lane_of_thread() / (D / 8), chunk = lane_of_thread() % (D / 8);
  const T* row = rows + r0 * stride + chunk * 8;
#pragma unroll
  for (int r = 0; r < kTileRows; r += kStep) {
    const bool there = (real >> (r + r0) & 1) != 0 && chunk * 8 < channels;
    cp_async(tile + tile_offset<D>(r + r0, chunk), there ? row : rows, there ? 16 : 0);
    row += kStep * stride;
  }
}

// The tiles of a warp.
template <class T, int D, int kTiles>
struct WarpTiles {
  static constexpr int kTile = kTileRows * D * 2, kMemory = kTiles * kTile;
  const StreamHead<T>& head;
  uint32_t memory;

  __device__ uint32_t tile(int which) const { return memory + which * kTile; }
  __device__ void load_tokens(int which, const ConstView& view, int first, int channels) const {
    const unsigned real =
        __ballot_sync(~0u, lane_of_thread() < kTileRows && first + lane_of_thread() < head.a.p.tokens);
    load_rows<T, D>(tile(which), &rows_of<const T>(view, head.batch, head.head).at(first, 0), view.stride[2], real,
                    channels);
  }
  // 16 entries from `first` on, below `end`; what lane x gets back is term(x), -inf for those that do not count.
  __device__ float load_entries(int height, int first, int end) const {
    const HsaStreamProblem& p = head.a.p;
    const bool mine = lane_of_thread() < kTileRows && first + lane_of_thread() < end;
    const float term = mine ? head.term(height, first + lane_of_thread()) : -INFINITY;
    const unsigned real = __ballot_sync(~0u, term != -INFINITY);
    if (height == 0) {
      load_rows<T, D>(tile(kK), &rows_of<const T>(p.k[0], head.batch, head.head).at(first, 0), p.k[0].stride[2], real,
                      p.head_size);
      load_rows<T, D>(tile(kV), &rows_of<const T>(p.v, head.batch, head.head).at(first, 0), p.v.stride[2], real,
                      p.value_size);
    } else {
      const int64_t at = head.node(height, first);
      load_rows<T, D>(tile(kK), head.a.rounded_k + at * p.head_size, p.head_size, real, p.head_size);
      load_rows<T, D>(tile(kV), head.a.rounded_v + at * p.value_size, p.value_size, real, p.value_size);
    }
    return term;
  }
  __device__ static void arrive() {
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
  }
};

inline bool has_small_heads(const HsaStreamProblem& p) { return p.head_size <= 64 && p.value_size <= 64; }

// 16 queries of a warp, and the tiles of entries that they see. s: scores, -inf where masked.
template <class T, int D, int kTiles>
struct QueryTile : WarpTiles<T, D, kTiles> {
  int first;  // query

  __device__ QueryTile(const StreamHead<T>& h, uint32_t memory, int first_query)
      : WarpTiles<T, D, kTiles>{h, memory}, first(first_query) {}

  // f(scores, position(half, column)) for every tile of entries.
  template <class F>
  __device__ void each_tile(const F& f) const {
    const StreamHead<T>& head = this->head;
    const int b = head.a.p.branching, last = min(first + kTileRows, static_cast<int>(head.a.p.tokens)) - 1;
    const float scale = static_cast<float>(head.a.p.scale);
    for (int height = 0; height < head.a.heights.count; ++height) {
      const int size = head.size(height), reach = last / size, end = height == 0 ? reach + 1 : reach;
      const int ancestor[2] = {(first + tile_row(0)) / size, (first + tile_row(1)) / size};
      const int family[2] = {ancestor[0] / b * b, ancestor[1] / b * b};
      for (int begin = first / size / b * b; begin < end; begin += kTileRows) {
        __syncwarp();
        const float term = this->load_entries(height, begin, end);
        this->arrive();
        float s[2][4] = {};
        rows_by_rows<T, D>(s, this->tile(kQ), this->tile(kK));
        auto position = [&](int half, int y) { return head.position(height, ancestor[half], begin + y); };
        each_of_tile([&](int half, int n, int i, int y) {
          const float add = __shfl_sync(~0u, term, y);
          const int entry = begin + y;
          const bool seen =
              entry >= family[half] && (entry < ancestor[half] || (height == 0 && entry == ancestor[half]));
          s[n][i] = seen && add != -INFINITY && first + tile_row(half) <= last
                        ? s[n][i] * scale + add + head.position_bias(position(half, y))
                        : -INFINITY;
        });
        f(s, position, height);
      }
    }
  }
};

// f(head, queries) for the tile of queries of this warp, whose q is being loaded.
template <class Queries, class T, class F>
__device__ inline void with_query_tile(const StreamArgs<T>& a, int tiles, const unsigned char* memory, const F& f) {
  const int warp = warp_of_thread();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kQueryWarps + warp;
  if (item >= a.p.batch * a.p.heads * tiles) return;
  const StreamHead<T> head(a, item / tiles);
  const Queries queries(head, shared_address(memory) + warp * Queries::kMemory,
                        static_cast<int>(item % tiles) * kTileRows);
  queries.load_tokens(kQ, a.p.q[0], queries.first, a.p.head_size);
  f(head, queries);
}

// One launch over all tiles of queries.
template <class T, class Kernel>
cudaError_t launch_queries(Kernel kernel, const StreamArgs<T>& a, int warp_memory, cudaStream_t stream) {
  const int tiles = static_cast<int>((a.p.tokens + kTileRows - 1) / kTileRows), memory = kQueryWarps * warp_memory;
  if (const cudaError_t e = allow_shared_memory(kernel, memory); e != cudaSuccess) return e;
  kernel<<<blocks_for(a.p.batch * a.p.heads * tiles, kQueryWarps), 32 * kQueryWarps, memory, stream>>>(a, tiles);
  return cudaGetLastError();
}

}  // namespace
}  // namespace strata::cuda
