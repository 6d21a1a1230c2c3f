// Streaming attention backward with mma.sync: the gradients of the entries, height by height from the top down. A warp
// has 16 entries and goes through the queries that see them, 16 at a time, which it loads for itself while it computes
// with those before: no warp waits for another. Where the queries are many, the warps of a block, and then blocks,
// share them, and their sums are added in order.
#pragma once

#include <algorithm>

#include "cuda/hsa_stream_mma.cuh"

namespace strata::cuda {
namespace {

constexpr int kMostEntryWarps = 4;
constexpr int kSharedQueries = 256;  // from so many on, the warps of a block share the queries of 16 entries
constexpr int kSplitQueries = 1024;  // of a block that shares them

// How the entries of a height are shared out. A tensor is the values, or the keys of a level; a warp has registers for
// the gradients of entry_tensors() of them, and there are several passes, in blocks of their own, if there are more.
// The gradients of coarse rows over 16 tokens come from several warps, so they are added later, like those of splits.
struct EntryWork {
  int tiles, passes, splits;  // tiles of 16 entries
  int warps, warp_memory;     // of a block
  bool shared, later;
  int groups() const { return shared ? tiles : (tiles + warps - 1) / warps; }  // blocks for all tiles
};

constexpr int entry_tensors(int D, int levels) { return levels == 1 ? 2 : 256 / D; }

// Shared memory of a warp: its entries, and queries in two places.
template <int D>
struct EntryLayout {
  // A multiple of 128, as the chunks of a row are swapped by their addresses (load_tile_rows).
  __host__ __device__ static constexpr int entries(int levels) { return (levels + 1) * kTileRows * D * 2 + 128; }
  __host__ __device__ static constexpr int query_rows(int levels) { return kTileRows + coarse_rows<kTileRows>(levels); }
  __host__ __device__ static constexpr int stage(int levels) {
    return (query_rows(levels) + kTileRows) * D * 2 + kTileRows * static_cast<int>(sizeof(float2));
  }
  __host__ __device__ static constexpr int memory(int levels) { return entries(levels) + 2 * stage(levels); }
};

int entry_memory(const HsaStreamProblem& p) {  // of a warp
  return has_small_heads(p) ? EntryLayout<64>::memory(p.levels) : EntryLayout<128>::memory(p.levels);
}

EntryWork entry_work(const HsaStreamProblem& p, const StreamHeights& heights, int height) {
  EntryWork work{};
  const int64_t b = heights.branching.value;
  const bool aligned = kTileRows % b == 0 || b % kTileRows == 0;  // tiles do not cut families
  const int64_t families = aligned ? std::max<int64_t>(1, kTileRows / b) : (kTileRows + b - 2) / b + 1;
  const int64_t around = (p.both_sides ? 2 : 1) * (int64_t{heights.near} - 1);
  const int64_t span = std::min(p.tokens, (families + around) * b * heights.size[height] + kTileRows);
  const int64_t queries = span * heights.group.value;
  work.tiles = (heights.nodes[height] + kTileRows - 1) / kTileRows;
  const int tensors = entry_tensors(has_small_heads(p) ? 64 : 128, p.levels);
  work.passes = (p.levels + tensors) / tensors;
  work.shared = queries >= kSharedQueries;
  work.splits = work.shared ? static_cast<int>((queries + kSplitQueries - 1) / kSplitQueries) : 1;
  work.later = work.splits > 1 || (height == 0 && p.levels > 5);
  work.warp_memory = entry_memory(p);
  for (work.warps = kMostEntryWarps; work.warps * work.warp_memory > shared_memory_per_block();) work.warps /= 2;
  return work;
}

template <class T, int D, int kLevels, bool kDrop>
struct EntryWarp {
  using Layout = EntryLayout<D>;
  static constexpr int kTensors = entry_tensors(D, kLevels);
  const StreamArgs<T>& a;
  const StreamKeys<T>& keys;
  const int height, first, count, pass;  // the first entry, and how many the height has
  const Piece piece;
  const EntryTiles<T, D, kLevels> tiles;
  unsigned char* const stages;
  float term[2], dkappa[2] = {}, sum[kTensors][D / 8][4] = {};  // sum: of the tensors

  __device__ EntryWarp(const StreamKeys<T>& k, int at_height, int tile, int which_pass, unsigned char* memory)
      : a(k.a),
        keys(k),
        height(at_height),
        first(tile * kTileRows),
        count(k.count(at_height)),
        pass(kTensors > kLevels ? 0 : which_pass),
        piece{at_height, first, count, kTileRows, 0},
        tiles(k, memory, kTileRows),
        stages(memory + Layout::entries(levels())) {
    tiles.template load<32>(piece);
    cp_async_commit();  // a warp that gets no queries waits for these copies, too
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) term[half] = tiles.terms[tile_row(half)];
  }
  __device__ int levels() const { return levels_of<kLevels>(a.p); }
  // Tensor 0 is the values, tensor l + 1 the keys of level l.
  __device__ int tensor(int x) const { return kTensors * pass + x; }

  __device__ static uint32_t q_tile(const unsigned char* stage, int level) {
    return shared_address(stage) + (level == 0 ? 0 : kTileRows + coarse_rows<kTileRows>(level)) * D * 2;
  }
  __device__ uint32_t dout_tile(const unsigned char* stage) const {
    return shared_address(stage) + Layout::query_rows(levels()) * D * 2;
  }
  // Of the 16 queries of a stage: lse in base 2, and delta.
  __device__ const float2* numbers(const unsigned char* stage) const {
    return reinterpret_cast<const float2*>(stage + (Layout::query_rows(levels()) + kTileRows) * D * 2);
  }
  // Of the two queries that are this lane's columns in product tile n.
  __device__ float4 query_numbers(const unsigned char* stage, int n) const {
    return reinterpret_cast<const float4*>(numbers(stage))[4 * n + lane_of_thread() % 4];
  }

  // 16 queries of a head from i0 on.
  __device__ void load(const StreamHead<T>& head, int i0, unsigned char* stage) const {
    const int tokens = head.tokens;
    load_tile_rows<T, D>(q_tile(stage, 0), rows_of<const T>(a.p.q[0], head.batch, head.head), i0, tokens,
                         a.p.head_size);
    load_tile_rows<T, D>(dout_tile(stage), rows_of<const T>(a.g.dout, head.batch, head.head), i0, tokens,
                         a.p.value_size);
#pragma unroll(kLevels <= 3 ? kLevels : 1)
    for (int level = 1; level < kLevels; ++level) {
      if (level >= levels()) break;
      load_level<T, D, 32>(q_tile(stage, level), 0, rows_of<const T>(a.p.q[level], head.batch, head.head), level, i0,
                           kTileRows, tokens, a.p.head_size, [](int) { return true; });
    }
    if (const int i = i0 + lane_of_thread(); lane_of_thread() < kTileRows)
      cp_async_8(shared_address(numbers(stage) + lane_of_thread()),
                 reinterpret_cast<const float2*>(a.deltas) + head.token(i < tokens ? i : i0), i < tokens);
    cp_async_commit();
  }

  // What 16 queries add to the sums.
  __device__ void add(const StreamHead<T>& head, int i0, const unsigned char* stage) {
    const int tokens = head.tokens;
    auto seen_by = [&](int i) { return keys.seen(height, keys.ancestor(height, i)); };
    const SightOfTile sight{seen_by(i0), seen_by(min(i0 + kTileRows, tokens) - 1)};
    if (sight.sees_none(first)) return;
    float s[2][4], ds[2][4] = {};
    scores(s, head, stage);
    if (head.has_positions(height)) {
      each_of_tile([&](int half, int n, int i, int y) {
        const int query = min(i0 + y, tokens - 1);
        const int64_t at = head.position(height, keys.ancestor(height, query), first + tile_row(half));
        if (seen_by(query).contains(first + tile_row(half))) s[n][i] += head.position_bias(at) * kLog2e;
      });
    }
    if (i0 + kTileRows > tokens || !sight.sees_all(first)) {
      each_of_tile([&](int half, int n, int i, int y) {
        if (i0 + y >= tokens || !seen_by(i0 + y).contains(first + tile_row(half))) s[n][i] = -INFINITY;
      });
    }
    rows_by_rows<T, D>(ds, tiles.value_tile(), dout_tile(stage));
    auto kept = [&](int half, int y) { return head.kept(i0 + y, height, first + tile_row(half)); };
    if constexpr (kDrop) each_of_tile([&](int half, int n, int i, int y) { ds[n][i] *= kept(half, y); });
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 pair = query_numbers(stage, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = fast_exp2(s[n][i]);
        ds[n][i] = s[n][i] * (ds[n][i] - (i % 2 == 0 ? pair.y : pair.w));
        dkappa[i / 2] += ds[n][i];
      }
    }
    if constexpr (kDrop) each_of_tile([&](int half, int n, int i, int y) { s[n][i] *= kept(half, y); });
#pragma unroll
    for (int x = 0; x < kTensors; ++x) {
      const int level = tensor(x) - 1;
      if (level >= levels()) break;
      uint32_t left[4];
      if (level < 0) {
        tile_operand<T>(left, s);
      } else {
        const float factor = static_cast<float>(a.p.scale) * head.level_weight(level);
        float scaled[2][4];
        each_of_tile([&](int, int n, int i, int) { scaled[n][i] = factor * ds[n][i]; });
        tile_operand<T>(left, scaled);
      }
      const uint32_t rows = level < 0 ? dout_tile(stage) : q_tile(stage, level);
#pragma unroll
      for (int n = 0; n < D / 8; n += 2)
        by_rows<T, D>(sum[x][n], sum[x][n + 1], left, rows, left_lane_row() >> max(level, 0), n);
    }
  }
  // The logarithms of the weights, in base 2.
  __device__ void scores(float (&s)[2][4], const StreamHead<T>& head, const unsigned char* stage) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 pair = query_numbers(stage, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = term[i / 2] - (i % 2 == 0 ? pair.x : pair.z);
    }
    const float scale = static_cast<float>(a.p.scale) * kLog2e;
#pragma unroll(kLevels <= 3 ? kLevels : 1)
    for (int level = 0; level < kLevels; ++level) {
      if (level >= levels()) break;
      float x[2][4] = {};
      rows_by_rows<T, D>(x, tiles.key_tile(level), tiles.key_slot(piece, level, left_lane_row()), q_tile(stage, level),
                         right_lane_row() >> level);
      const float weight = head.level_weight(level) * scale;
      each_of_tile([&](int, int n, int i, int) { s[n][i] += weight * x[n][i]; });
    }
  }

  // Tiles of queries from, from + step, .. before `to` of those that may see the entries, head after head of the group.
  __device__ void add_queries(int from, int to, int step, int begin, int chunks) {
    int which = from / chunks, chunk = from % chunks;
    auto advance = [&] {
      for (chunk += step; chunk >= chunks; chunk -= chunks) ++which;
    };
    if (from < to) load(StreamHead<T>(keys, which), begin + chunk * kTileRows, stages);
    for (int item = from, turn = 0; item < to; item += step, ++turn) {
      const StreamHead<T> head(keys, which);
      const int i0 = begin + chunk * kTileRows;
      advance();
      if (item + step < to) {
        load(StreamHead<T>(keys, which), begin + chunk * kTileRows, stages + (turn + 1) % 2 * Layout::stage(levels()));
        cp_async_wait<1>();
      } else {
        cp_async_wait<0>();
      }
      __syncwarp();
      add(head, i0, stages + turn % 2 * Layout::stage(levels()));
      __syncwarp();
    }
    cp_async_wait<0>();  // of the entries, where there are no queries
  }
  __device__ void add_split(int split, int splits, int worker, int workers) {
    const int begin = keys.first_query(height, first) / kTileRows * kTileRows;
    const int end = keys.end_query(height, min(first + kTileRows, count) - 1);
    const int chunks = (max(0, end - begin) + kTileRows - 1) / kTileRows;
    if (chunks == 0) return cp_async_wait<0>();
    const int64_t all = int64_t{a.heights.group.value} * chunks;
    add_queries(static_cast<int>(all * split / splits) + worker, static_cast<int>(all * (split + 1) / splits), workers,
                begin, chunks);
  }

  // f(number) for all sums.
  template <class F>
  __device__ void each_number(const F& f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) f(dkappa[half]);
#pragma unroll
    for (int x = 0; x < kTensors; ++x) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) f(sum[x][n][i]);
      }
    }
  }
  // The sums of all warps of a block that share their entries, in order, into the first warp. `memory`: of the first.
  __device__ void collect(unsigned char* memory, int warp_memory, int warps) {
    static_assert((kTensors * D / 2 + 2) * 32 * 4 <=
                  Layout::memory(kLevels == 1 ? 1 : 2));  // they fit where entries and queries were
    auto place = [&](int warp) { return reinterpret_cast<float*>(memory + warp * warp_memory) + lane_of_thread(); };
    __syncwarp();  // the copies of all lanes have arrived
    if (warp_of_thread() > 0) {
      float* to = place(warp_of_thread());
      each_number([&](float x) { *to = x, to += 32; });
    }
    __syncthreads();
    for (int warp = 1; warp < warps && warp_of_thread() == 0; ++warp) {
      const float* from = place(warp);
      each_number([&](float& x) { x += *from, from += 32; });
    }
  }

  // The sums of two neighbouring channels at a time: f(half, tensor, channel, x).
  template <class F>
  __device__ void each_sum(const F& f) const {
#pragma unroll
    for (int x = 0; x < kTensors; ++x) {
      if (tensor(x) > levels()) break;
      const int channels = tensor(x) == 0 ? a.p.value_size : a.p.head_size;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int channel = 8 * n + 2 * (lane_of_thread() % 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (channel < channels)
            f(half, tensor(x), channel, make_float2(sum[x][n][2 * half], sum[x][n][2 * half + 1]));
        }
      }
    }
  }
  // f(entry, sum) for the gradients of kappa, once.
  template <class F>
  __device__ void each_kappa(const F& f) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float x = quad_sum(dkappa[half]);
      if (pass == 0 && lane_of_thread() % 4 == 0) f(tile_row(half), x);
    }
  }

  // What the entries have of their parents' gradients: all of it is loaded before anything is stored.
  __device__ void add_parents() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int entry = first + tile_row(half);
      const auto parent = entry < count ? keys.parent(height, entry) : typename StreamKeys<T>::Parent{0.0f, 0};
      if (!(parent.share > 0)) continue;
      if (pass == 0 && lane_of_thread() % 4 == 0) dkappa[half] += parent.share * a.dkappa[parent.node];
#pragma unroll
      for (int x = 0; x < kTensors; ++x) {
        if (tensor(x) > levels()) break;
        const bool values = tensor(x) == 0;
        const float* const from =
            values ? a.dv + parent.node * a.p.value_size : a.dk + keys.key_row(parent.node, tensor(x) - 1);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          const int channel = 8 * n + 2 * (lane_of_thread() % 4);
          if (channel >= (values ? a.p.value_size : a.p.head_size)) continue;
          const float2 more = *reinterpret_cast<const float2*>(from + channel);
          sum[x][n][2 * half] += parent.share * more.x, sum[x][n][2 * half + 1] += parent.share * more.y;
        }
      }
    }
  }
  __device__ void store() {
    add_parents();
    each_kappa([&](int row, float x) {
      if (first + row < count) keys.store_gradient(height, first + row, 0, a.p.head_size + a.p.value_size, x);
    });
    if (height == 0) return store_leaves();
    each_sum([&](int half, int tensor, int channel, float2 x) {
      const int entry = first + tile_row(half);
      if (entry >= count) return;
      const int64_t at = keys.node(height, entry);
      float* const to = tensor == 0 ? a.dv + at * a.p.value_size : a.dk + keys.key_row(at, tensor - 1);
      *reinterpret_cast<float2*>(to + channel) = x;
    });
  }
  // Rows of levels are added up and go out through shared memory, 16 bytes at a time.
  __device__ void store_leaves() {
    const uint32_t tile = shared_address(stages);
#pragma unroll
    for (int x = 0; x < kTensors; ++x) {
      if (tensor(x) > levels()) break;
      const bool values = tensor(x) == 0;
      const int level = kLevels == 1 || values ? 0 : tensor(x) - 1;
      __syncwarp();
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        float(&rows)[4] = sum[x][n];
        for (int l = 1; l <= level; ++l) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            rows[i] += l < 4 ? __shfl_xor_sync(~0u, rows[i], 2 << l) : i < 2 ? rows[i + 2] : 0;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (kLevels > 1 && !leads_level(tile_row(half), level)) continue;
          asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + tile_offset<D>(tile_row(half) >> level, n) +
                                                       4 * (lane_of_thread() % 4)),
                       "r"(pack(rows[2 * half], rows[2 * half + 1], T())));
        }
      }
      __syncwarp();
      const Rows<T> to = rows_of<T>(values ? a.g.dv : a.g.dk[level], keys.batch, keys.key_head);
      const int chunk = lane_of_thread() % (D / 8);
      if (chunk * 8 >= (values ? a.p.value_size : a.p.head_size)) continue;
      for (int r = lane_of_thread() / (D / 8); r < max(1, kTileRows >> level); r += 32 / (D / 8)) {
        if (first + (r << level) >= count) break;
        uint4 eight;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                     : "r"(tile + tile_offset<D>(r, chunk)));
        *reinterpret_cast<uint4*>(to.data + ((first >> level) + r) * to.stride + chunk * 8) = eight;
      }
    }
  }
  // For the kernel that adds splits: by channel, the keys of all levels, then the values, then kappa.
  __device__ void store_partial(float* to) const {
    const HsaStreamProblem& p = a.p;
    const int channels = p.levels * p.head_size + p.value_size + 1;
    each_sum([&](int half, int tensor, int channel, float2 x) {
      float* at = to + tile_row(half) * channels + (tensor == 0 ? p.levels : tensor - 1) * p.head_size + channel;
      at[0] = x.x, at[1] = x.y;
    });
    each_kappa([&](int row, float x) { to[row * channels + channels - 1] = x; });
  }
};

}  // namespace
}  // namespace strata::cuda
