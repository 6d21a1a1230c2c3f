// HKT forward on Hopper (sm_90a), for the common case: 1 to 3 levels, head sizes up to 128, no bias. A block has 256
// queries: two warpgroups of 128, two products of 64 rows each, and a third warpgroup that brings keys and values. The
// arrangement of rows and keys is that of hkt_scores.cuh, with 64 rows in place of 16: slot r of product a is row
// 2r + a, level 1 has one product of 64 rows, and level 2 one with every row twice.
#include <cmath>

#include "cuda/bring.cuh"
#include "cuda/device.h"
#include "cuda/hkt_cuda_kernels.h"
#include "cuda/hkt_scores.cuh"

namespace strata::cuda {
namespace {

constexpr int kGroupRows = 128, kGroups = 2, kRows = kGroupRows * kGroups, kThreads = 128 * (kGroups + 1);
constexpr int kBringing = 40;  // registers of the threads that bring; of 504 for three of different kinds

// Shared memory of a block, in bytes from its start. P: panels of 64 channels.
template <int D, int kLevels>
struct Plan {
  static constexpr int P = D / 64, kKeys = D == 64 ? 128 : 64, kStages = D == 64 ? 3 : 2;
  static constexpr int kQueryTile = 64 * 128 * P;
  static constexpr int kQueryTiles = 2 + (kLevels - 1);  // per group: two products of level 0, one of each other
  __host__ __device__ static constexpr int key_tile(int level) {  // within a stage
    int begin = 0;
    for (int l = 0; l < level; ++l) begin += (kKeys >> l) * 128 * P;
    return begin;
  }
  static constexpr int kValues = key_tile(kLevels), kStage = kValues + kKeys * 128 * P;
  static constexpr int kQueries = 0, kKeyStages = kGroups * kQueryTiles * kQueryTile;
  static constexpr int kBarriers = kKeyStages + kStages * kStage;      // full and empty: stages, then queries
  static constexpr int kSize = kBarriers + 16 * (kStages + 1) + 1024;  // the start is rounded up to 1024
  __device__ static uint32_t full(uint32_t barriers, int stage) { return barriers + 16 * stage; }
  __device__ static uint32_t empty(uint32_t barriers, int stage) { return barriers + 16 * stage + 8; }
};

// A piece of work: 256 queries of one head, which meet `blocks` tiles of keys. There is one block per multiprocessor,
// which goes from one piece to the next, so that keys and queries are brought while results are stored.
struct Piece {
  int batch, head, first_row, limit, blocks;
};
// Piece number `turn` of this block. Every round is shared out among all blocks, one further each time, so that each
// has its share of the long pieces and of the short ones.
template <int kKeys>
__device__ bool find_work(const HktProblem& p, int turn, Piece* piece) {
  const int tokens = static_cast<int>(p.tokens), row_blocks = (tokens + kRows - 1) / kRows;
  const int64_t item = static_cast<int64_t>(turn) * gridDim.x + (blockIdx.x + turn) % gridDim.x;
  if (item >= p.batch * p.heads * row_blocks) return false;
  const int line = static_cast<int>(item / row_blocks);
  piece->head = line % static_cast<int>(p.heads);
  piece->batch = line / static_cast<int>(p.heads);
  // The last rows see most keys, and go first.
  piece->first_row = (row_blocks - 1 - static_cast<int>(item % row_blocks)) * kRows;
  piece->limit =
      p.lengths == nullptr ? tokens : static_cast<int>(max(int64_t{0}, min(p.lengths[piece->batch], p.tokens)));
  const int end = p.causal ? min(piece->limit, piece->first_row + kRows) : piece->limit;
  piece->blocks = piece->first_row < piece->limit ? (end + kKeys - 1) / kKeys : 0;
  return true;
}

template <class T, int D, int kLevels>
__device__ void bring_queries(const HktProblem& p, const Piece& piece, uint32_t memory) {
  using M = Plan<D, kLevels>;
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t tiles = memory + M::kQueries + group * M::kQueryTiles * M::kQueryTile;
    const int first = piece.first_row + group * kGroupRows;
    for (int a = 0; a < 2; ++a)
      bring_rows<D>(tiles + a * M::kQueryTile, rows_of<const T>(p.q[0], piece.batch, piece.head), first + a,
                    piece.limit, p.head_size, [](int slot) { return 2 * slot; });
#pragma unroll
    for (int l = 1; l < kLevels; ++l)
      bring_rows<D>(tiles + (l + 1) * M::kQueryTile, rows_of<const T>(p.q[l], piece.batch, piece.head), first >> l,
                    (piece.limit + (1 << l) - 1) >> l, p.head_size, [l](int slot) { return slot >> (l - 1); });
  }
}

template <class T, int D, int kLevels>
__device__ void bring(const HktProblem& p, uint32_t memory, uint32_t barriers) {
  using M = Plan<D, kLevels>;
  Piece piece;
  Announcer announcer;
  for (int turn = 0, step = 0; find_work<M::kKeys>(p, turn, &piece); ++turn) {
    const int key_head = piece.head / static_cast<int>(p.heads / p.key_heads);
    if (turn > 0) announcer.wait_for_room(M::empty(barriers, M::kStages), (turn - 1) & 1);
    bring_queries<T, D, kLevels>(p, piece, memory);
    announcer.ask(M::full(barriers, M::kStages));
    SlotStream<D, M::kKeys> values(rows_of<const T>(p.v, piece.batch, key_head), 0, p.value_size);
    SlotStream<D, M::kKeys> keys0(rows_of<const T>(p.k[0], piece.batch, key_head), 0, p.head_size);
    SlotStream<D, M::kKeys / 2> keys1(rows_of<const T>(p.k[kLevels > 1 ? 1 : 0], piece.batch, key_head), 0,
                                      p.head_size);
    SlotStream<D, M::kKeys / 4> keys2(rows_of<const T>(p.k[kLevels > 2 ? 2 : 0], piece.batch, key_head), 0,
                                      p.head_size);
    for (int block = 0; block < piece.blocks; ++block, ++step) {
      const int stage = step % M::kStages, round = step / M::kStages;
      if (round > 0) announcer.wait_for_room(M::empty(barriers, stage), (round - 1) & 1);
      const uint32_t tile = memory + M::kKeyStages + stage * M::kStage;
      keys0.bring(tile, piece.limit, p.head_size);
      if constexpr (kLevels > 1) keys1.bring(tile + M::key_tile(1), (piece.limit + 1) / 2, p.head_size);
      if constexpr (kLevels > 2) keys2.bring(tile + M::key_tile(2), (piece.limit + 3) / 4, p.head_size);
      values.bring(tile + M::kValues, piece.limit, p.value_size);
      announcer.ask(M::full(barriers, stage));
    }
  }
  announcer.finish();
}

// acc (+)= queries x keys of one level, over D channels.
template <class T, int D, int kCount>
__device__ inline void level_product(float (&acc)[kCount], uint32_t queries, uint32_t keys, bool add) {
  constexpr int kKeys = kCount * 2;
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    const uint32_t channel = (kk % 4) * 32;
    shared_product(acc, operand(queries + kk / 4 * 64 * 128 + channel), operand(keys + kk / 4 * kKeys * 128 + channel),
                   kk > 0 || add, T());
  }
}

template <class T, int D, int kLevels>
__device__ void attend(const HktProblem& p, const HktOutputs& o, uint32_t memory, uint32_t barriers, const Piece& piece,
                       int turn, int& step) {
  using M = Plan<D, kLevels>;
  const int limit = piece.limit, head = piece.head;
  constexpr int kKeys = M::kKeys, kTiles = kKeys / 8, kScores = kKeys / 2;  // numbers a thread has of 64 rows
  const int group = static_cast<int>(threadIdx.x) / 128 - 1, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own_first = piece.first_row + group * kGroupRows;
  const uint32_t queries = memory + M::kQueries + group * M::kQueryTiles * M::kQueryTile;
  const LevelWeights w = level_weights(static_cast<const float*>(p.weights) + head * p.levels, p.levels);
  const float full_scale = w.finest * static_cast<float>(p.scale) * kLog2e, factor = fabsf(full_scale);

  float out[2][D / 2], peak[2][2], sum[2][2] = {};
#pragma unroll
  for (int i = 0; i < D / 2; ++i) out[0][i] = out[1][i] = 0;
  for (auto& half : peak) half[0] = half[1] = -INFINITY;
  barrier_wait(M::full(barriers, M::kStages), turn & 1);

  for (int block = 0; block < piece.blocks; ++block, ++step) {
    const int stage = step % M::kStages, first_key = block * kKeys;
    barrier_wait(M::full(barriers, stage), step / M::kStages & 1);
    const uint32_t tile = memory + M::kKeyStages + stage * M::kStage;

    float s[2][kScores];
    if constexpr (kLevels > 1) {
      float level1[kScores / 2], level2[kLevels > 2 ? kScores / 4 : 1];
      products_begin();
      level_product<T, D>(level1, queries + 2 * M::kQueryTile, tile + M::key_tile(1), false);
      if constexpr (kLevels > 2) level_product<T, D>(level2, queries + 3 * M::kQueryTile, tile + M::key_tile(2), false);
      products_commit();
      products_wait<0>();
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int above = (i / 8) * 4 + i % 4;
        s[0][i] = level1[above];
        if constexpr (kLevels > 2) s[0][i] += level2[(above / 8) * 4 + i % 4] * w.down[1];
        s[0][i] *= w.down[0];
        s[1][i] = s[0][i];
      }
    }
    products_begin();
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      level_product<T, D>(s[a], queries + a * M::kQueryTile, tile, kLevels > 1);
      products_commit();
    }

    const bool edge =
        first_key + kKeys > limit || (p.causal && first_key + kKeys > own_first + 1) || own_first + kGroupRows > limit;
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      // The first product is done, and the other one goes on while its softmax is computed; then it is the turn of the
      // values of the first.
      products_wait<1>();
      if (full_scale < 0) {
#pragma unroll
        for (int i = 0; i < kScores; ++i) s[a][i] = -s[a][i];
      }
      if (edge) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = own_first + row_of_slot(a, warp * 16 + lane / 4 + half * 8);
          const int visible = row < limit ? (p.causal ? min(limit, row + 1) : limit) : 0;
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (first_key + key_of_slot<kTiles>(n, 2 * (lane % 4) + e) >= visible)
                s[a][4 * n + 2 * half + e] = -INFINITY;
            }
          }
        }
      }
      float shrink[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = peak[a][half];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) top = fmaxf(top, fmaxf(s[a][4 * n + 2 * half], s[a][4 * n + 2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float base = top == -INFINITY ? 0.0f : top * factor;
        shrink[half] = fast_exp2(peak[a][half] * factor - base);
        peak[a][half] = top;
        float add = 0;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[a][4 * n + 2 * half + e];
            x = fast_exp2(x * factor - base);
            add += x;
          }
        }
        sum[a][half] = sum[a][half] * shrink[half] + add;
      }
#pragma unroll
      for (int i = 0; i < D / 2; ++i) out[a][i] *= shrink[i / 2 % 2];
      uint32_t weight[kKeys / 16][4];
#pragma unroll
      for (int kk = 0; kk < kKeys / 16; ++kk) {
#pragma unroll
        for (int r = 0; r < 4; ++r) weight[kk][r] = pack(s[a][8 * kk + 2 * r], s[a][8 * kk + 2 * r + 1], T());
      }
      products_begin();
#pragma unroll
      for (int kk = 0; kk < kKeys / 16; ++kk)
        register_product(out[a], weight[kk], operand(tile + M::kValues + kk * 16 * 128, kKeys * 128), T());
      products_commit();
    }
    products_wait<0>();
    __syncwarp();
    if (lane == 0) barrier_arrive(M::empty(barriers, stage));
  }

  float* lse = static_cast<float*>(o.lse) + (static_cast<int64_t>(piece.batch) * p.heads + head) * p.tokens;
  group_sync(1 + group);  // results take the places of the queries
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[a][half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const int row = own_first + row_of_slot(a, warp * 16 + lane / 4 + half * 8);
      inverse[half] = total > 0 ? 1.0f / total : (total == 0 ? 0.0f : total);  // NaN stays NaN
      if (lane % 4 == 0 && row < p.tokens)
        lse[row] = total == 0 ? -INFINITY : peak[a][half] * factor * kLn2 + logf(total);
    }
    put_rows<T, D>(queries + a * M::kQueryTile, 1.0f, [&](int i) { return out[a][i] * inverse[i / 2 % 2]; });
  }
  __syncwarp();
#pragma unroll
  for (int a = 0; a < 2; ++a)
    store_rows<D>(queries + a * M::kQueryTile, rows_of<T>(o.out, piece.batch, head), p.value_size, [&](int slot) {
      const int row = own_first + row_of_slot(a, slot);
      return row < p.tokens ? row : -1;
    });
  __syncwarp();
  if (lane == 0) barrier_arrive(M::empty(barriers, M::kStages));
}

template <class T, int D, int kLevels>
__global__ void __launch_bounds__(kThreads, 1)
    hkt_forward_hopper_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o) {
  using M = Plan<D, kLevels>;
  extern __shared__ unsigned char raw[];
  const uint32_t memory = (shared_address(raw) + 1023) / 1024 * 1024, barriers = memory + M::kBarriers;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage <= M::kStages; ++stage) {
      barrier_init(M::full(barriers, stage), 128);
      barrier_init(M::empty(barriers, stage), kGroups * 4);  // every warp says so
    }
    fence_shared();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    fewer_registers<kBringing>();
    bring<T, D, kLevels>(p, memory, barriers);
  } else {
    more_registers<(504 - kBringing) / 2>();
    Piece piece;
    int step = 0;
    for (int turn = 0; find_work<M::kKeys>(p, turn, &piece); ++turn)
      attend<T, D, kLevels>(p, o, memory, barriers, piece, turn, step);
  }
}

template <class T, int D, int kLevels>
cudaError_t launch(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  const auto kernel = hkt_forward_hopper_kernel<T, D, kLevels>;
  constexpr int kMemory = Plan<D, kLevels>::kSize;
  if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory);
      e != cudaSuccess)
    return e;
  const int64_t pieces = (p.tokens + kRows - 1) / kRows * p.heads * p.batch;
  kernel<<<grid_for(pieces, p.causal && p.tokens >= kLong), kThreads, kMemory, stream>>>(p, o);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  const bool small = p.head_size <= 64 && p.value_size <= 64;
  switch (p.levels) {
    case 1:
      return small ? launch<T, 64, 1>(p, o, stream) : launch<T, 128, 1>(p, o, stream);
    case 2:
      return small ? launch<T, 64, 2>(p, o, stream) : launch<T, 128, 2>(p, o, stream);
    default:
      return small ? launch<T, 64, 3>(p, o, stream) : launch<T, 128, 3>(p, o, stream);
  }
}

}  // namespace

bool hkt_forward_fits_hopper(const HktProblem& p, const HktOutputs& o) {
  if (p.levels > 3 || p.head_size > 128 || p.value_size > 128 || p.bias.data != nullptr) return false;
  bool wide = is_wide(p.v, p.value_size) && is_wide(o.out, p.value_size) && is_streamable(p.v);
  for (int l = 0; l < p.levels; ++l)
    wide = wide && is_wide(p.q[l], p.head_size) && is_wide(p.k[l], p.head_size) && is_streamable(p.k[l]);
  return wide;
}

cudaError_t hkt_forward_hopper(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(p, o, stream) : launch<__half>(p, o, stream);
}

}  // namespace strata::cuda
