// HKT forward on Hopper (sm_90a), for the common case: 1 to 5 levels, head sizes up to 128, no bias. A persistent,
// warp-specialised kernel: a work tile is 256 queries of one head, for two consumer warpgroups of 128 with two products
// of 64 rows each; a producer warpgroup loads keys and values. Rows and keys are arranged as in hkt_scores.cuh, with 64
// rows in place of 16: slot r of product a is row 2r + a, level 1 has one product of 64 rows, and level 2 one with
// every row twice. With 4 or 5 levels, levels 2 to 4 are packed into one product. Heads are filled up to D channels,
// 32, 64, 96 or 128.
#include <algorithm>
#include <cmath>

#include "cuda/device.h"
#include "cuda/hkt_kernels.h"
#include "cuda/hkt_scores.cuh"
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/online_softmax.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/storage.h"

namespace strata::cuda {
namespace {

constexpr int kGroupRows = 128, kGroups = 2, kRows = kGroupRows * kGroups, kThreads = 128 * (kGroups + 1);
// Of 504 for one thread of each of the three warpgroups.
__host__ __device__ constexpr int producer_registers(int levels) { return levels > 3 ? 56 : 40; }

// Shared memory of a block, in bytes from its start. P: panels of 64 channels.
template <int D, int kLevels>
struct Layout {
  static constexpr int P = (D + 63) / 64, kKeys = D <= 64 ? 128 : 64, kStages = D <= 64 ? 3 : 2;
  static constexpr bool kPacked = kLevels > 3;
  static constexpr int kTiles = kPacked ? 3 : kLevels;  // of keys: one for each level, or for those that are packed
  static constexpr int kPackedKeys = kKeys / 4 + kKeys / 8 + (kKeys > 128 ? kKeys / 16 : 8);
  static constexpr int kQueryTile = 64 * 128 * P;
  static constexpr int kQueryTiles = kTiles + 1;  // per group: two products of level 0, one of each other
  __host__ __device__ static constexpr int key_tile(int tile) {  // within a stage
    int begin = 0;
    for (int l = 0; l < tile; ++l) begin += (kPacked && l == 2 ? kPackedKeys : kKeys >> l) * 128 * P;
    return begin;
  }
  static constexpr int kValues = key_tile(kTiles), kStage = kValues + kKeys * 128 * P;
  // Slot r of product a, and of level 1.
  __device__ static int coarse_row(int slot) { return kPacked ? paired_row(slot) : slot; }
  __device__ static int fine_row(int a, int slot) { return 2 * coarse_row(slot) + a; }
  static constexpr int kQueries = 0, kKeyStages = kGroups * kQueryTiles * kQueryTile;
  static constexpr int kBarriers = kKeyStages + kStages * kStage;
  static constexpr int kSize = kBarriers + 16 * (kStages + 1) + 1024;  // the start is rounded up to 1024
};

// Shared memory and the two pipelines: keys and values in stages, and the queries of one work tile.
template <int D, int kLevels>
struct Block {
  using M = Layout<D, kLevels>;
  uint32_t memory;
  __device__ Pipeline<M::kStages> keys() const { return {memory + M::kBarriers}; }
  __device__ Pipeline<1> queries() const { return {memory + M::kBarriers + Pipeline<M::kStages>::kBytes}; }
  __device__ uint32_t key_tile(int step) const {
    return memory + M::kKeyStages + Pipeline<M::kStages>::stage(step) * M::kStage;
  }
  __device__ uint32_t query_tiles(int group) const {
    return memory + M::kQueries + group * M::kQueryTiles * M::kQueryTile;
  }
};

// 256 queries of one head, which meet tiles first .. last - 1 of the keys.
struct WorkTile {
  SequenceLimits limits;
  int batch, head, first_row, first, last;
};
template <int kKeys>
__device__ bool next_work_tile(const HktProblem& p, int wave, WorkTile* work) {
  const HktSide queries = query_side(p);
  const auto heads = static_cast<unsigned>(p.heads);
  // The last rows see most keys, and go first.
  if (queries.begins == nullptr) {
    const unsigned row_blocks = (static_cast<unsigned>(p.tokens) + kRows - 1) / kRows,
                   lines = heads * static_cast<unsigned>(p.batch);
    LineTile at;
    if (!next_line_tile(wave, row_blocks, lines, section_of(p), &at)) return false;
    work->head = static_cast<int>(at.line % heads);
    work->batch = static_cast<int>(at.line / heads);
    work->first_row = static_cast<int>((row_blocks - 1 - at.rank) * kRows);
  } else {
    const auto tiles = static_cast<unsigned>(tile_count(queries, kRows)),
               item = static_cast<unsigned>(scheduled_tile(wave));
    if (item >= heads * tiles) return false;
    work->head = static_cast<int>(item / tiles);
    const HktTile at = locate_tile(queries, tiles - 1 - item % tiles, kRows);
    work->batch = static_cast<int>(at.sequence);
    work->first_row = static_cast<int>(at.tile) * kRows;
  }
  work->limits = SequenceLimits(p, work->batch);
  const int2 range = work->limits.key_tiles(p, work->first_row, kRows, kKeys);
  work->first = range.x;
  work->last = range.y;
  return true;
}

template <class T, int D, int kLevels>
__device__ void load_queries(const HktProblem& p, const WorkTile& work, const Block<D, kLevels>& block) {
  using M = Layout<D, kLevels>;
  constexpr int kUnroll = D > 64 && kLevels > 2 ? 1 : kGroups;  // measured: more code is slower there, faster elsewhere
#pragma unroll kUnroll
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t tiles = block.query_tiles(group);
    const int first = work.first_row + group * kGroupRows;
#pragma unroll
    for (int a = 0; a < 2; ++a)
      load_rows<D>(tiles + a * M::kQueryTile, rows_of<const T>(p.q[0], work.batch, work.head), first + a,
                   work.limits.queries, p.head_size, [](int slot) { return M::fine_row(0, slot); });
#pragma unroll
    for (int l = 1; l < (M::kPacked ? 2 : kLevels); ++l)
      load_rows<D>(tiles + (l + 1) * M::kQueryTile, rows_of<const T>(p.q[l], work.batch, work.head), first >> l,
                   level_rows(work.limits.queries, l), p.head_size,
                   [l](int slot) { return M::coarse_row(slot) >> (l - 1); });
    if constexpr (M::kPacked)
      load_packed<D, T>(tiles + 3 * M::kQueryTile, p.q, p.levels, 2, work.batch, work.head, first, work.limits.queries,
                        p.head_size);
  }
}

template <class T, int D, int kLevels>
__device__ void produce(const HktProblem& p, const Block<D, kLevels>& block) {
  using M = Layout<D, kLevels>;
  const auto pipeline = block.keys();
  const auto queries = block.queries();
  WorkTile work;
  Producer producer;
  for (int wave = 0, step = 0; next_work_tile<M::kKeys>(p, wave, &work); ++wave) {
    const int key_head = work.head / static_cast<int>(p.heads / p.key_heads);
    producer.acquire(queries, wave);
    load_queries<T>(p, work, block);
    producer.commit(queries, wave);
    auto keys_of = [&](int l) { return rows_of<const T>(p.k[l < p.levels ? l : 0], work.batch, key_head); };
    auto limit_of = [&](int l) { return l < p.levels ? level_rows(work.limits.keys, l) : 0; };
    const int begin = work.first * M::kKeys;
    RowStream<D, M::kKeys> values(rows_of<const T>(p.v, work.batch, key_head), begin, p.value_size);
    RowStream<D, M::kKeys> keys0(keys_of(0), begin, p.head_size);
    RowStream<D, M::kKeys / 2> keys1(keys_of(1), begin / 2, p.head_size);
    constexpr int kPacked = M::kPacked ? M::kPackedKeys : M::kKeys / 4, kAfter2 = M::kKeys / 4,
                  kAfter3 = kAfter2 + M::kKeys / 8;
    RowStream<D, M::kKeys / 4, kPacked> keys2(keys_of(2), begin / 4, p.head_size);
    RowStream<D, M::kKeys / 8, kPacked, kAfter2> keys3(keys_of(3), begin / 8, p.head_size);
    RowStream<D, M::kKeys / 16, kPacked, kAfter3> keys4(keys_of(4), begin / 16, p.head_size);
    for (int i = work.first; i < work.last; ++i, ++step) {
      producer.acquire(pipeline, step);
      const uint32_t tile = block.key_tile(step);
      keys0.load(tile, work.limits.keys, p.head_size);
      if constexpr (kLevels > 1) keys1.load(tile + M::key_tile(1), limit_of(1), p.head_size);
      if constexpr (kLevels > 2) keys2.load(tile + M::key_tile(2), limit_of(2), p.head_size);
      if constexpr (kLevels > 3) keys3.load(tile + M::key_tile(2), limit_of(3), p.head_size);
      if constexpr (kLevels > 3) keys4.load(tile + M::key_tile(2), limit_of(4), p.head_size);
      values.load(tile + M::kValues, work.limits.keys, p.value_size);
      producer.commit(pipeline, step);
    }
  }
  producer.finish();
}

// What a consumer warpgroup does with its 128 queries.
template <class T, int D, int kLevels>
struct Consumer {
  using M = Layout<D, kLevels>;
  static constexpr int kKeys = M::kKeys, kTiles = kKeys / 8, kScores = kKeys / 2;  // scores of a thread, of 64 rows

  const HktProblem& p;
  const WorkTile& work;
  uint32_t queries;
  int warp, lane, own_first;
  int2 full;  // tiles of keys without an edge: the limits themselves are looked up at edges, and take no registers
  LevelWeights w;
  float full_scale, factor;
  float out[2][D / 2];
  OnlineSoftmaxRow rows[2][2];  // of product a, half of a fragment

  __device__ Consumer(const HktProblem& problem, const WorkTile& tile, uint32_t query_tiles, int group)
      : p(problem),
        work(tile),
        queries(query_tiles),
        warp(warp_of_thread() % 4),
        lane(lane_of_thread()),
        own_first(tile.first_row + group * kGroupRows),
        full(tile.limits.full_key_tiles(problem, own_first, kGroupRows, kKeys)),
        w(level_weights(static_cast<const float*>(p.weights) + tile.head * p.levels, p.levels)) {
    full_scale = w.finest * static_cast<float>(p.scale) * kLog2e;
    factor = fabsf(full_scale);
#pragma unroll
    for (int i = 0; i < D / 2; ++i) out[0][i] = out[1][i] = 0;
  }

  // Levels 2 to 4 from their packed product, at the resolution of level 2 and with the weight of that level: by product
  // tile and column.
  __device__ void unpack_levels(float (&level2)[kTiles / 4][2], const float (&packed)[M::kPackedKeys / 2]) const {
    constexpr int kTiles3 = (kTiles + 7) / 8, kBegin3 = kTiles / 4, kBegin4 = kBegin3 + kTiles3;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float level4 = __shfl_sync(~0u, packed[4 * kBegin4 + 2 + e], packed_lane(2)) * w.down[3];
#pragma unroll
      for (int n = 0; n < kTiles / 4; ++n) {
        const float level3 = __shfl_sync(~0u, packed[4 * (kBegin3 + n / 2) + 2 + e], packed_lane(1));
        level2[n][e] = packed[4 * n + e] + (level3 + level4) * w.down[2];
      }
    }
  }

  // The coarse levels, as the start of both products of level 0.
  __device__ void coarse_scores(float (&s)[2][kScores], uint32_t tile) const {
    float level1[kScores / 2];
    if constexpr (M::kPacked) {
      float packed[M::kPackedKeys / 2], level2[kTiles / 4][2];
      wgmma_fence();
      wgmma_rows<T, D>(packed, queries + 3 * M::kQueryTile, tile + M::key_tile(2), false);
      wgmma_commit();
      wgmma_rows<T, D>(level1, queries + 2 * M::kQueryTile, tile + M::key_tile(1), false);
      wgmma_commit();
      wgmma_wait<1>();
      unpack_levels(level2, packed);
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        s[0][i] = s[1][i] = (level1[(i / 8) * 4 + i % 4] + level2[i / 16][i % 2] * w.down[1]) * w.down[0];
      return;
    }
    float level2[kLevels > 2 ? kScores / 4 : 1];
    wgmma_fence();
    wgmma_rows<T, D>(level1, queries + 2 * M::kQueryTile, tile + M::key_tile(1), false);
    if constexpr (kLevels > 2) wgmma_rows<T, D>(level2, queries + 3 * M::kQueryTile, tile + M::key_tile(2), false);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int above = (i / 8) * 4 + i % 4;
      s[0][i] = level1[above];
      if constexpr (kLevels > 2) s[0][i] += level2[(above / 8) * 4 + i % 4] * w.down[1];
      s[0][i] *= w.down[0];
      s[1][i] = s[0][i];
    }
  }

  // The sign of the scale goes into the scores; masked ones become -inf.
  __device__ void sign_and_mask(float (&s)[kScores], int a, int first_key, bool edge) const {
    if (full_scale < 0) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = -s[i];
    }
    if (!edge) return;
    const SequenceLimits limits(p, work.batch);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto visible = limits.visible_keys(p, own_first + M::fine_row(a, warp * 16 + lane / 4 + half * 8));
#pragma unroll
      for (int e = 0; e < 2; ++e) {  // the keys of a column are neighbours
        const uint32_t bits = visible.bits(first_key + key_of_slot<kTiles>(0, 2 * (lane % 4) + e), kTiles);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          if ((bits >> n & 1) == 0) s[4 * n + 2 * half + e] = -INFINITY;
        }
      }
    }
  }

  // The softmax of product a, and its product with the values, which is left under way.
  __device__ void add_values(float (&s)[kScores], int a, uint32_t values) {
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      rescale[half] =
          rows[a][half].template add<kTiles>(factor, [&](int n, int e) -> float& { return s[4 * n + 2 * half + e]; });
#pragma unroll
    for (int i = 0; i < D / 2; ++i) out[a][i] *= rescale[i / 2 % 2];
    uint32_t weight[kKeys / 16][4];
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk) {
#pragma unroll
      for (int r = 0; r < 4; ++r) weight[kk][r] = pack(s[8 * kk + 2 * r], s[8 * kk + 2 * r + 1], T());
    }
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk)
      wgmma_rs(out[a], weight[kk], smem_descriptor(values + kk * 16 * 128, kKeys * 128), T());
    wgmma_commit();
  }

  // Tile i of the keys.
  __device__ void add_tile(uint32_t tile, int i) {
    float s[2][kScores];
    if constexpr (kLevels > 1) coarse_scores(s, tile);
    wgmma_fence();
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      wgmma_rows<T, D>(s[a], queries + a * M::kQueryTile, tile, kLevels > 1);
      wgmma_commit();
    }
    const bool edge = i < full.x || i >= full.y;
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      // The first product is done; the second goes on while the softmax of the first is computed.
      wgmma_wait<1>();
      sign_and_mask(s[a], a, i * kKeys, edge);
      add_values(s[a], a, tile + M::kValues);
    }
    wgmma_wait<0>();
  }

  // Results go out through the tiles of the queries.
  __device__ void store(const HktOutputs& o) const {
    float* lse = static_cast<float*>(o.lse) + hkt_line(p, work.batch, work.head);
    const int rows_there = static_cast<int>(stored_rows(query_side(p), work.batch));
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      float inverse[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float row_lse;
        inverse[half] = rows[a][half].finish(factor, row_lse);
        const int row = own_first + M::fine_row(a, warp * 16 + lane / 4 + half * 8);
        if (lane % 4 == 0 && row < rows_there) lse[row] = row_lse;
      }
      stage_rows<T, D>(queries + a * M::kQueryTile, 1.0f, [&](int i) { return out[a][i] * inverse[i / 2 % 2]; });
    }
    __syncwarp();
#pragma unroll
    for (int a = 0; a < 2; ++a)
      store_rows<D>(queries + a * M::kQueryTile, rows_of<T>(o.out, work.batch, work.head), p.value_size, [&](int slot) {
        const int row = own_first + M::fine_row(a, slot);
        return row < rows_there ? row : -1;
      });
    __syncwarp();
  }
};

template <class T, int D, int kLevels>
__device__ void consume(const HktProblem& p, const HktOutputs& o, const Block<D, kLevels>& block) {
  using M = Layout<D, kLevels>;
  const auto pipeline = block.keys();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 1, 0);  // known to be uniform
  WorkTile work;
  for (int wave = 0, step = 0; next_work_tile<M::kKeys>(p, wave, &work); ++wave) {
    Consumer<T, D, kLevels> consumer(p, work, block.query_tiles(group), group);
    block.queries().wait(wave);
    auto release = [&] {
      __syncwarp();
      if (consumer.lane == 0) pipeline.release(step);
      ++step;
    };
    int i = work.first;
    const int end = min(work.last, work.limits.key_tiles(p, consumer.own_first, kGroupRows, M::kKeys).y);
    for (; i < end; ++i) {
      pipeline.wait(step);
      consumer.add_tile(block.key_tile(step), i);
      release();
    }
    for (; i < work.last; ++i) {  // which the first rows of the block do not see
      pipeline.wait(step);
      release();
    }
    consumer.store(o);
    if (consumer.lane == 0) block.queries().release(wave);
  }
}

template <class T, int D, int kLevels>
__global__ void __launch_bounds__(kThreads, 1)
    hkt_forward_sm90_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o) {
  extern __shared__ unsigned char raw[];
  constexpr int kProducer = producer_registers(kLevels);
  const Block<D, kLevels> block{(shared_address(raw) + 1023) / 1024 * 1024};
  if (threadIdx.x == 0) {
    block.keys().init(128, kGroups * 4);  // every warp of the consumers releases
    block.queries().init(128, kGroups * 4);
    fence_proxy_async();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    lower_register_budget<kProducer>();
    produce<T>(p, block);
  } else {
    raise_register_budget<(504 - kProducer) / 2>();
    consume<T>(p, o, block);
  }
}

template <class T, int D, int kLevels>
cudaError_t launch(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  const auto kernel = hkt_forward_sm90_kernel<T, D, kLevels>;
  constexpr int kMemory = Layout<D, kLevels>::kSize;
  if (const cudaError_t e = allow_shared_memory(kernel, kMemory); e != cudaSuccess) return e;
  const int64_t work_tiles = tile_count(query_side(p), kRows) * p.heads;
  kernel<<<persistent_grid(work_tiles, p.causal && p.tokens >= kLongSequence), kThreads, kMemory, stream>>>(p, o);
  return cudaGetLastError();
}

template <class T, int D>
cudaError_t launch(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  switch (p.levels) {
    case 1:
      return launch<T, D, 1>(p, o, stream);
    case 2:
      return launch<T, D, 2>(p, o, stream);
    case 3:
      return launch<T, D, 3>(p, o, stream);
    default:
      return launch<T, D, 5>(p, o, stream);
  }
}

}  // namespace

cudaError_t hkt_forward_sm90(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  return with_16_bit_storage(p.dtype, [&](auto storage) {
    using T = decltype(storage);
    const int channels = std::max(p.head_size, p.value_size);
    if (channels <= 32) return launch<T, 32>(p, o, stream);
    if (channels <= 64) return launch<T, 64>(p, o, stream);
    return channels <= 96 ? launch<T, 96>(p, o, stream) : launch<T, 128>(p, o, stream);
  });
}

}  // namespace strata::cuda
