// Streaming attention backward with mma.sync: the gradients of the entries, height by height from the top down. A block
// has 32 neighbouring entries and goes through the queries that see them, 64 at a time. Its warps share the work twice:
// first each has 16 entries and 16 queries, of which it leaves the weights and their gradients in shared memory; then
// each has 16 entries and a quarter of all channels, and sums over the 64 queries. Where the queries are many, blocks
// split them, and their sums are added in order.
#include <algorithm>

#include "cuda/hsa_stream_mma.cuh"

namespace strata::cuda {
namespace {

constexpr int kEntryRows = 32, kEntryQueries = 64, kEntryWarps = 8, kEntryThreads = 32 * kEntryWarps;
constexpr int kSplitQueries = 1024;  // of one block

// Rows of the levels below `level` of 64 queries, which start at a multiple of 16.
__host__ __device__ constexpr int entry_query_rows(int level) {
  return level == 0 ? 0 : 2 * kEntryQueries - (2 * kEntryQueries >> level) + level - 1;
}

// What the block needs to know of one query.
struct QueryNumbers {
  SeenEntries seen;
  float lse, delta;
};

// Shared memory: keys and values of the entries, weights and their gradients, queries in one or two places.
template <int D>
struct EntryLayout {
  static constexpr int kWeights = kEntryRows * kEntryQueries * 2;  // bytes
  __host__ __device__ static int entries(int levels) { return (levels + 1) * kEntryRows * D * 2 + kEntryRows * 4; }
  __host__ __device__ static int stage(int levels) {
    return (entry_query_rows(levels) + kEntryQueries) * D * 2 + kEntryQueries * static_cast<int>(sizeof(QueryNumbers));
  }
  static int memory(int levels, int stages) { return entries(levels) + 2 * kWeights + stages * stage(levels); }
  // 0: it does not fit.
  static int stages(int levels) {
    for (const int stages : {2, 1}) {
      if (memory(levels, stages) <= shared_memory_per_block()) return stages;
    }
    return 0;
  }
};

// How the queries of a height are split. The gradients of coarse rows over 16 tokens come from several warps, so they
// are added afterwards, like those of splits.
struct EntrySplit {
  int tiles, splits;
  bool later;
};
EntrySplit entry_split(const HsaStreamProblem& p, const StreamHeights& heights, int height) {
  const int64_t b = p.branching;
  const bool aligned = kEntryRows % b == 0 || b % kEntryRows == 0;  // tiles do not cut families
  const int64_t families = aligned ? std::max<int64_t>(1, kEntryRows / b) : (kEntryRows + b - 2) / b + 1;
  const int64_t around = (p.both_sides ? 2 : 1) * (int64_t{heights.near} - 1);
  const int64_t span = std::min(p.tokens, (families + around) * b * heights.size[height] + kTileRows);
  const int64_t queries = span * (p.heads / p.key_heads);
  const int splits = static_cast<int>((queries + kSplitQueries - 1) / kSplitQueries);
  return {(heights.nodes[height] + kEntryRows - 1) / kEntryRows, splits, splits > 1 || (height == 0 && p.levels > 5)};
}

template <class T, int D, int kLevels>
struct EntryBlock {
  using Layout = EntryLayout<D>;
  const StreamArgs<T>& a;
  const StreamKeys<T>& keys;
  int height, first, count;  // the first entry, and how many the height has
  EntryTiles<T, D, kLevels> tiles;
  unsigned char *weights, *stages;
  int warp_rows, warp_part;  // of the 16 entries of the warp the first, and its part: 16 queries, or a quarter of D
  float term[2], dkappa[2] = {};
  float dk[kLevels][D / 32][4] = {}, dv[D / 32][4] = {};

  __device__ EntryBlock(const StreamKeys<T>& k, int at_height, int first_entry, unsigned char* memory)
      : a(k.a),
        keys(k),
        height(at_height),
        first(first_entry),
        count(k.count(at_height)),
        tiles{k, shared_address(memory), reinterpret_cast<float*>(memory + Layout::entries(levels()) - kEntryRows * 4),
              kEntryRows},
        weights(memory + Layout::entries(levels())),
        stages(weights + 2 * Layout::kWeights),
        warp_rows(warp_of_thread() / 4 * kTileRows),
        warp_part(warp_of_thread() % 4) {
    tiles.template load<kEntryThreads>(height, first, count);
  }
  __device__ int levels() const { return levels_of<kLevels>(a.p); }
  __device__ uint32_t q_tile(const unsigned char* stage, int level) const {
    return shared_address(stage) + entry_query_rows(level) * D * 2;
  }
  __device__ uint32_t dout_tile(const unsigned char* stage) const { return q_tile(stage, levels()); }
  __device__ QueryNumbers* numbers(unsigned char* stage) const {
    return reinterpret_cast<QueryNumbers*>(stage + (entry_query_rows(levels()) + kEntryQueries) * D * 2);
  }

  // 64 queries of a head from i0 on, those below `end` alone.
  __device__ void load(const StreamHead<T>& head, int i0, int end, unsigned char* stage) const {
    for (int level = 0; level < levels(); ++level)
      load_level<T, D, kEntryThreads>(q_tile(stage, level), rows_of<const T>(a.p.q[level], head.batch, head.head),
                                      level, i0, kEntryQueries, end, a.p.head_size, [](int) { return true; });
    load_level<T, D, kEntryThreads>(dout_tile(stage), rows_of<const T>(a.g.dout, head.batch, head.head), 0, i0,
                                    kEntryQueries, end, a.p.value_size, [](int) { return true; });
    cp_async_commit();
    if (threadIdx.x >= kEntryQueries) return;
    const int i = i0 + static_cast<int>(threadIdx.x);
    QueryNumbers x{{0, 0, 0, 0}, -INFINITY, 0.0f};
    if (i < end) {
      const float lse = static_cast<const float*>(a.o.lse)[head.token(i)];
      if (lse != -INFINITY) x = {keys.seen(height, keys.ancestor(height, i)), lse, a.deltas[head.token(i)]};
    }
    numbers(stage)[threadIdx.x] = x;
  }

  // The weights of 16 entries and 16 queries, and the gradients of their scores, into shared memory.
  __device__ void store_weights(const StreamHead<T>& head, int i0, unsigned char* stage) {
    const HsaStreamProblem& p = a.p;
    const int query = warp_part * kTileRows;
    float s[2][4] = {}, ds[2][4] = {};
    for (int level = 0; level < levels(); ++level) {
      float x[2][4] = {};
      rows_by_rows<T, D>(x, tiles.key_tile(level), tiles.key_slot(height, first, level, warp_rows + left_lane_row()),
                         q_tile(stage, level), ((i0 + query + right_lane_row()) >> level) - (i0 >> level));
      const float weight = head.level_weight(level) * static_cast<float>(p.scale);
      each_of_tile([&](int, int n, int i, int) { s[n][i] += weight * x[n][i]; });
    }
    rows_by_rows<T, D>(ds, tiles.value_tile() + warp_rows * D * 2, dout_tile(stage) + query * D * 2);
    const QueryNumbers* const at = numbers(stage) + query;
    const bool positioned = head.has_positions(height);
    each_of_tile([&](int half, int n, int i, int y) {
      const int entry = first + warp_rows + tile_row(half);
      const QueryNumbers& x = at[y];
      float weight = 0;
      if (x.seen.contains(entry) && term[half] != -INFINITY) {
        const int64_t position =
            positioned ? head.position(height, keys.ancestor(height, i0 + query + y), entry) : int64_t{-1};
        weight = fast_exp2((s[n][i] + term[half] + head.position_bias(position) - x.lse) * kLog2e);
      }
      s[n][i] = weight;
      ds[n][i] = weight == 0 ? 0.0f : weight * (ds[n][i] - x.delta);
      dkappa[half] += ds[n][i];
    });
    auto store = [&](uint32_t tile, const float(&x)[2][4]) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const uint32_t to = tile + tile_offset<kEntryQueries>(warp_rows + tile_row(half), 2 * warp_part + n) +
                              4 * (lane_of_thread() % 4);
          asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pack(x[n][2 * half], x[n][2 * half + 1], T())));
        }
      }
    };
    store(shared_address(weights), s);
    store(shared_address(weights) + Layout::kWeights, ds);
  }

  // to += factor * (16 entries x 64 queries) x (64 rows, this warp's quarter of their channels), of which the first
  // 16 `steps` count.
  template <class Slot>
  __device__ void add_product(float (&to)[D / 32][4], const uint32_t (&left)[4][4], uint32_t rows, float factor,
                              int steps, const Slot& slot) const {
#pragma unroll
    for (int n = 0; n < D / 32; n += 2) {
      float x[2][4] = {};
#pragma unroll
      for (int kk = 0; kk < kEntryQueries / 16; ++kk) {
        if (kk >= steps) break;
        by_rows<T, D>(x[0], x[1], left[kk], rows, slot(16 * kk + left_lane_row()), warp_part * (D / 32) + n);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) to[n][i] += factor * x[0][i], to[n + 1][i] += factor * x[1][i];
    }
  }
  __device__ void load_left(uint32_t (&left)[4][4], uint32_t tile) const {
#pragma unroll
    for (int kk = 0; kk < kEntryQueries / 16; ++kk)
      ldmatrix(left[kk],
               tile + tile_offset<kEntryQueries>(warp_rows + left_lane_row(), 2 * kk + lane_of_thread() / 16));
  }
  __device__ void add_gradients(const StreamHead<T>& head, int i0, int steps, const unsigned char* stage) {
    uint32_t left[4][4];
    load_left(left, shared_address(weights));
    add_product(dv, left, dout_tile(stage), 1.0f, steps, [](int r) { return r; });
    load_left(left, shared_address(weights) + Layout::kWeights);
    const float scale = static_cast<float>(a.p.scale);
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (level >= levels()) break;
      add_product(dk[level], left, q_tile(stage, level), scale * head.level_weight(level), steps,
                  [&](int r) { return ((i0 + r) >> level) - (i0 >> level); });
    }
  }

  // All queries of a split.
  __device__ void add_split(int split, int splits, int stage_count) {
    const int group = static_cast<int>(a.heights.group.value);
    const int begin = keys.first_query(height, first) / kTileRows * kTileRows;
    const int end = keys.end_query(height, min(first + kEntryRows, count) - 1);
    const int chunks = (max(0, end - begin) + kEntryQueries - 1) / kEntryQueries, all = group * chunks;
    const int from = static_cast<int>(int64_t{all} * split / splits),
              to = static_cast<int>(int64_t{all} * (split + 1) / splits);
    auto head_of = [&](int item) { return StreamHead<T>(a, keys.key_stream * group + item / chunks); };
    auto query_of = [&](int item) { return begin + item % chunks * kEntryQueries; };
    auto stage_of = [&](int item) {
      return stages + (stage_count == 2 ? (item - from) % 2 : 0) * Layout::stage(levels());
    };
    if (stage_count == 2 && from < to) load(head_of(from), query_of(from), end, stage_of(from));
    for (int item = from; item < to; ++item) {
      if (stage_count == 2 && item + 1 < to) {
        load(head_of(item + 1), query_of(item + 1), end, stage_of(item + 1));
        cp_async_wait<1>();
      } else {
        if (stage_count == 1) load(head_of(item), query_of(item), end, stage_of(item));
        cp_async_wait<0>();
      }
      __syncthreads();
      if (item == from) {
#pragma unroll
        for (int half = 0; half < 2; ++half) term[half] = tiles.terms[warp_rows + tile_row(half)];
      }
      const StreamHead<T> head = head_of(item);
      const int i0 = query_of(item), steps = min(kEntryQueries / 16, (end - i0 + 15) / 16);
      if (warp_part < steps) store_weights(head, i0, stage_of(item));
      __syncthreads();
      add_gradients(head, i0, steps, stage_of(item));
      __syncthreads();
    }
    cp_async_wait<0>();  // of a split without queries
  }

  // The sums over the queries of this warp's entries, two neighbouring channels at a time: f(half, tensor, channel, x);
  // tensor: a level, or all levels for the values.
  template <class F>
  __device__ void each_sum(const F& f) const {
    auto each_channel = [&](int tensor, int channels, const float(&x)[D / 32][4]) {
#pragma unroll
      for (int n = 0; n < D / 32; ++n) {
        const int channel = (warp_part * (D / 32) + n) * 8 + 2 * (lane_of_thread() % 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (channel < channels) f(half, tensor, channel, make_float2(x[n][2 * half], x[n][2 * half + 1]));
        }
      }
    };
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (level < levels()) each_channel(level, a.p.head_size, dk[level]);
    }
    each_channel(levels(), a.p.value_size, dv);
  }

  __device__ void store(const float (&kappas)[2][4][kTileRows]) {
    const HsaStreamProblem& p = a.p;
    typename StreamKeys<T>::Parent parent[2];
    int entry[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      entry[half] = first + warp_rows + tile_row(half);
      parent[half] = entry[half] < count ? keys.parent(height, entry[half]) : typename StreamKeys<T>::Parent{0.0f, 0};
      if (warp_part != 0 || lane_of_thread() % 4 != 0 || entry[half] >= count) continue;
      float sum = 0;
      for (int part = 0; part < 4; ++part) sum += kappas[warp_rows / kTileRows][part][tile_row(half)];
      const int channel = p.head_size + p.value_size;
      keys.store_gradient(height, entry[half], 0, channel, sum + keys.from_parent(height, entry[half], 0, channel));
    }
    float2 above{};  // of the first half, for levels that have both in one row
    each_sum([&](int half, int tensor, int channel, float2 x) {
      const bool values = tensor == levels();
      const int channels = values ? p.value_size : p.head_size;
      if (parent[half].share > 0) {
        const float* from =
            values ? a.dv + parent[half].node * channels : a.dk + keys.key_row(parent[half].node, tensor);
        const float2 more = *reinterpret_cast<const float2*>(from + channel);
        x.x += parent[half].share * more.x, x.y += parent[half].share * more.y;
      }
      if (height > 0) {
        if (entry[half] >= count) return;
        const int64_t at = keys.node(height, entry[half]);
        float* to = values ? a.dv + at * channels : a.dk + keys.key_row(at, tensor);
        *reinterpret_cast<float2*>(to + channel) = x;
        return;
      }
      const int level = values ? 0 : tensor;
      for (int l = 1; l <= level && l < 4; ++l) {
        x.x += __shfl_xor_sync(~0u, x.x, 2 << l);
        x.y += __shfl_xor_sync(~0u, x.y, 2 << l);
      }
      if (level == 4) {
        if (half == 0) above = x;
        if (half == 0) return;
        x.x += above.x, x.y += above.y;
      }
      const int row = entry[level == 4 ? 0 : half];
      if (row % (1 << level) != 0 || row >= count) return;
      const View& to = values ? a.g.dv : a.g.dk[tensor];
      reinterpret_cast<uint32_t&>(rows_of<T>(to, keys.batch, keys.key_head).at(row >> level, channel)) =
          pack(x.x, x.y, T());
    });
  }
};

template <class T, int D, int kLevels>
__global__ void __launch_bounds__(kEntryThreads, D == 64 && kLevels <= 3 ? 2 : 1)
    stream_mma_entry_kernel(const __grid_constant__ StreamArgs<T> a, int height, EntrySplit split, int stages) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ float kappas[2][4][kTileRows];
  const int item = static_cast<int>(blockIdx.x), tile = item / split.splits;
  const StreamKeys<T> keys(a, tile / split.tiles);
  EntryBlock<T, D, kLevels> block(keys, height, tile % split.tiles * kEntryRows, memory);
  block.add_split(item % split.splits, split.splits, stages);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(block.dkappa[half]);
    if (lane_of_thread() % 4 == 0) kappas[block.warp_rows / kTileRows][block.warp_part][tile_row(half)] = sum;
  }
  __syncthreads();
  if (!split.later) {
    block.store(kappas);
    return;
  }
  const HsaStreamProblem& p = a.p;
  const int channels = p.levels * p.head_size + p.value_size + 1;
  float* const to = a.partials + int64_t{item} * kEntryRows * channels;
  block.each_sum([&](int half, int tensor, int channel, float2 x) {
    float* at = to + (block.warp_rows + tile_row(half)) * channels + tensor * p.head_size + channel;
    at[0] = x.x, at[1] = x.y;
  });
  for (int row = static_cast<int>(threadIdx.x); row < kEntryRows; row += kEntryThreads) {
    float sum = 0;
    for (const float(&part)[kTileRows] : kappas[row / kTileRows]) sum += part[row % kTileRows];
    to[row * channels + channels - 1] = sum;
  }
}

// The splits of an entry, or of the entries of a coarse row, in order. With level 0 also dv and dkappa.
template <class T>
__global__ void stream_reduce_splits_kernel(const __grid_constant__ StreamArgs<T> a, int height, int level,
                                            EntrySplit split, int rows) {
  const HsaStreamProblem& p = a.p;
  const int width = level == 0 ? p.head_size + p.value_size + 1 : p.head_size;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stream = item / width / rows;
  if (stream >= p.batch * p.key_heads) return;
  const StreamKeys<T> keys(a, static_cast<int>(stream));
  const int row = static_cast<int>(item / width % rows), c = static_cast<int>(item % width);
  const int channels = p.levels * p.head_size + p.value_size + 1;
  const int at = c < p.head_size ? level * p.head_size + c : p.levels * p.head_size + c - p.head_size;
  const int first = height == 0 ? row << level : row;
  const int end = height == 0 ? min(keys.count(0), (row + 1) << level) : row + 1;
  float sum = 0;
  for (int n = first; n < end; ++n) {
    const int64_t tile = stream * split.tiles + n / kEntryRows;
    for (int s = 0; s < split.splits; ++s)
      sum += a.partials[((tile * split.splits + s) * kEntryRows + n % kEntryRows) * channels + at];
    sum += keys.from_parent(height, n, level, c);
  }
  keys.store_gradient(height, row, level, c, sum);
}

template <class T, int D, int kLevels>
cudaError_t entries(const StreamArgs<T>& a, int height, cudaStream_t stream) {
  const EntrySplit split = entry_split(a.p, a.heights, height);
  const int stages = EntryLayout<D>::stages(a.p.levels), memory = EntryLayout<D>::memory(a.p.levels, stages);
  const auto kernel = stream_mma_entry_kernel<T, D, kLevels>;
  if (const cudaError_t e = allow_shared_memory(kernel, memory); e != cudaSuccess) return e;
  const int64_t keys = a.p.batch * a.p.key_heads;
  kernel<<<blocks_for(keys * split.tiles * split.splits, 1), kEntryThreads, memory, stream>>>(a, height, split, stages);
  for (int level = 0; level < a.p.levels && split.later; ++level) {
    const int64_t rows = height == 0 ? hkt_level_tokens(a.p.tokens, level) : a.heights.nodes[height];
    const int64_t items = keys * rows * (a.p.head_size + (level == 0 ? a.p.value_size + 1 : 0));
    stream_reduce_splits_kernel<T>
        <<<blocks_for(items, 256), 256, 0, stream>>>(a, height, level, split, static_cast<int>(rows));
  }
  return cudaGetLastError();
}

}  // namespace

bool hsa_stream_entry_mma_fits(const HsaStreamProblem& p) {
  return (has_small_heads(p) ? EntryLayout<64>::stages(p.levels) : EntryLayout<128>::stages(p.levels)) > 0;
}

int64_t hsa_stream_partials(const HsaStreamProblem& p, const StreamHeights& heights) {
  int64_t most = 0;
  for (int height = 0; height < heights.count; ++height) {
    const EntrySplit split = entry_split(p, heights, height);
    const int64_t channels = int64_t{p.levels} * p.head_size + p.value_size + 1;
    if (split.later) most = std::max(most, int64_t{split.tiles} * split.splits * kEntryRows * channels);
  }
  return most;
}

template <class T>
cudaError_t hsa_stream_entry_gradient_mma(const StreamArgs<T>& a, cudaStream_t stream) {
  const bool small = has_small_heads(a.p);
  for (int height = a.heights.count - 1; height >= 0; --height) {
    const cudaError_t e =
        a.p.levels == 1 ? (small ? entries<T, 64, 1>(a, height, stream) : entries<T, 128, 1>(a, height, stream))
        : a.p.levels <= 3
            ? (small ? entries<T, 64, 3>(a, height, stream) : entries<T, 128, 3>(a, height, stream))
            : (small ? entries<T, 64, kMaxLevels>(a, height, stream) : entries<T, 128, kMaxLevels>(a, height, stream));
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}
template cudaError_t hsa_stream_entry_gradient_mma(const StreamArgs<__nv_bfloat16>&, cudaStream_t);
template cudaError_t hsa_stream_entry_gradient_mma(const StreamArgs<__half>&, cudaStream_t);

}  // namespace strata::cuda
