// HKT backward on Hopper (sm_90a), for the common case: 1 to 3 levels, head sizes up to 128, no bias. As in
// hkt_backward_cuda.cu, one kernel owns keys and one owns queries, so that nothing is added to by two blocks. The own
// side gives the rows of the products: 128 per block, two warpgroups of 64, and a third that brings the other side in
// tiles of 64. Scores and dS never leave the registers: rounded, they are the left operand of the second products.
//
// Of 16 rows of a warp, slots g and g + 8 are rows 2g and 2g + 1. Both coarse levels share one tile: slot g is row g of
// level 1, slot g + 8 its row of level 2, and of the other side 32 rows of level 1 are followed by 16 of level 2. So
// one product gives the scores of both, one has the gradients of both, and a thread has all that its two rows need.
// Sums over the other side are taken in registers, over the rows of level 2 at the end.
//
// With heads of 128 channels the sums of keys, coarse keys and values do not fit into the registers; there the values
// have a kernel of their own, which computes the scores once more.
#include <cmath>

#include "cuda/device.h"
#include "cuda/hkt_backward_bring.cuh"
#include "cuda/hkt_cuda_kernels.h"
#include "cuda/hkt_scores.cuh"

namespace strata::cuda {
namespace {

// acc (+)= own rows x other rows, over D channels.
template <class T, int D, int kCount>
__device__ inline void score_product(float (&acc)[kCount], uint32_t own, uint32_t other, bool add) {
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    const uint32_t channel = (kk % 4) * 32;
    shared_product(acc, operand(own + kk / 4 * 64 * 128 + channel),
                   operand(other + kk / 4 * kCount * 2 * 128 + channel), kk > 0 || add, T());
  }
}

// x as the left operand of products over its columns.
template <class T, int kCount>
__device__ inline void to_operand(uint32_t (&packed)[kCount / 8][4], const float (&x)[kCount], float factor) {
#pragma unroll
  for (int kk = 0; kk < kCount / 8; ++kk) {
#pragma unroll
    for (int r = 0; r < 4; ++r) packed[kk][r] = pack(x[8 * kk + 2 * r] * factor, x[8 * kk + 2 * r + 1] * factor, T());
  }
}
template <class T, int D, int kSteps>
__device__ inline void gradient_product(float (&acc)[D / 2], const uint32_t (&left)[kSteps][4], uint32_t rows) {
#pragma unroll
  for (int kk = 0; kk < kSteps; ++kk)
    register_product(acc, left[kk], operand(rows + kk * 16 * 128, kSteps * 16 * 128), T());
}
// Sums of dS over blocks of level 1 and 2 as left operands: rows of level 1 in slots g, of level 2 in slots g + 8.
template <class T>
__device__ inline void coarse_operand(uint32_t (&left)[3][4], const float (&ds)[kScores], float factor1,
                                      float factor2) {
  float sums[4][2];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int e = 0; e < 2; ++e) sums[m][e] = ds[8 * m + e] + ds[8 * m + 2 + e] + ds[8 * m + 4 + e] + ds[8 * m + 6 + e];
  }
#pragma unroll
  for (int kk = 0; kk < 2; ++kk) {
    left[kk][0] = pack(sums[2 * kk][0] * factor1, sums[2 * kk][1] * factor1, T());
    left[kk][2] = pack(sums[2 * kk + 1][0] * factor1, sums[2 * kk + 1][1] * factor1, T());
    left[kk][1] = left[kk][3] = 0;
  }
  left[2][0] = left[2][2] = 0;
  left[2][1] = pack((sums[0][0] + sums[1][0]) * factor2, (sums[0][1] + sums[1][1]) * factor2, T());
  left[2][3] = pack((sums[2][0] + sums[3][0]) * factor2, (sums[2][1] + sums[3][1]) * factor2, T());
}

template <class T, int D, bool kCoarse, bool kOwnKeys, Part kPart>
__device__ void gather(const Arguments& arguments, const Walk& walk, int turn, int& step, uint32_t memory,
                       const unsigned char* start, uint32_t barriers) {
  using M = Plan<D, kCoarse>;
  constexpr bool kKeys = kPart != Part::kValues, kValues = kOwnKeys && kPart != Part::kKeys;
  const HktProblem& p = arguments.p;
  const HktGradients& gr = arguments.g;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, tokens = static_cast<int>(p.tokens), limit = walk.limit;
  const int buffer = turn % M::kOwnBuffers;
  const uint32_t own = memory + buffer * M::kOwn + group * M::kOwnTiles * M::kOwnTile;
  const int own_first = walk.own_first + 64 * group;
  int rows[2];  // of this thread, in the sequence
  for (int half = 0; half < 2; ++half) rows[half] = own_first + own_row(warp * 16 + lane / 4 + 8 * half);

  float fine[kKeys ? D / 2 : 1] = {}, coarse[kKeys && kCoarse ? D / 2 : 1] = {}, values[kValues ? D / 2 : 1] = {};
  float lse2[2] = {}, delta[2] = {};
  if (!kOwnKeys) {
    const int64_t line = (static_cast<int64_t>(walk.batch) * p.heads + walk.first_head) * p.tokens;
    for (int half = 0; half < 2; ++half) {
      const float lse = rows[half] < limit ? static_cast<const float*>(arguments.o.lse)[line + rows[half]] : -INFINITY;
      lse2[half] = lse == -INFINITY ? INFINITY : lse * kLog2e;
      delta[half] = rows[half] < limit ? arguments.deltas[line + rows[half]] : 0.0f;
    }
  }
  barrier_wait(M::full(barriers, M::kStages + buffer), turn / M::kOwnBuffers & 1);

  for (int head = walk.first_head; head < walk.first_head + walk.heads; ++head) {
    const float* a = static_cast<const float*>(p.weights) + head * p.levels;
    const LevelWeights w = level_weights(a, p.levels);
    const float full_scale = w.finest * static_cast<float>(p.scale) * kLog2e;
    // What differs between the heads that share keys goes into the sums.
    const float factor0 = kOwnKeys ? a[0] : 1.0f, factor1 = kOwnKeys && p.levels > 1 ? a[1] : 1.0f,
                factor2 = kOwnKeys && p.levels > 2 ? a[2] : 1.0f;
    for (int block = walk.first; block < walk.last; ++block, ++step) {
      const int stage = step % M::kStages, other_first = block * kOther;
      barrier_wait(M::full(barriers, stage), step / M::kStages & 1);
      const uint32_t tile = memory + M::kStagesBegin + stage * M::kStage;
      float s[kScores], dp[kScores];
      // The coarse levels are the start of the fine one (hkt_scores.cuh); dO V^T is computed meanwhile.
      products_begin();
      if constexpr (kCoarse) {
        float above[kCoarseRows / 2];
        score_product<T, D>(above, own + 2 * M::kOwnTile, tile + M::kCoarseTile, false);
        products_commit();
        if constexpr (kKeys) {
          score_product<T, D>(dp, own + M::kOwnTile, tile + M::kExtra, false);
          products_commit();
        }
        products_wait<kKeys ? 1 : 0>();
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            s[4 * n + i] = (above[n / 2 * 4 + i % 2] + above[(4 + n / 4) * 4 + 2 + i % 2] * w.down[1]) * w.down[0];
        }
        products_begin();
      } else if constexpr (kKeys) {
        score_product<T, D>(dp, own + M::kOwnTile, tile + M::kExtra, false);
        products_commit();
      }
      score_product<T, D>(s, own, tile, kCoarse);
      products_commit();
      products_wait<0>();

      const bool edge =
          other_first + kOther > limit || own_first + 64 > limit ||
          (p.causal && (kOwnKeys ? own_first + 64 > other_first + 1 : other_first + kOther > own_first + 1));
      const float* numbers = reinterpret_cast<const float*>(start + (tile - memory) + M::kNumbers);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float2 column = {};
        if (kOwnKeys) column = *reinterpret_cast<const float2*>(numbers + 8 * n + 2 * (lane % 4));
        const float column_lse[2] = {column.x * kLog2e, column.y * kLog2e};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = s[4 * n + i];
          x = fast_exp2(x * full_scale - (kOwnKeys ? column_lse[i % 2] : lse2[i / 2]));
        }
      }
      if (edge) {  // what is masked may hold anything
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int other = other_first + key_of_slot<kTiles>(n, 2 * (lane % 4) + i % 2), mine = rows[i / 2];
            const int query = kOwnKeys ? other : mine, key = kOwnKeys ? mine : other;
            if (key < limit && query < limit && !(p.causal && key > query)) continue;
            s[4 * n + i] = 0;
            if constexpr (kKeys) dp[4 * n + i] = 0;
          }
        }
      }
      if constexpr (kKeys) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          float2 column = {};
          if (kOwnKeys) column = *reinterpret_cast<const float2*>(numbers + kOther + 8 * n + 2 * (lane % 4));
#pragma unroll
          for (int i = 0; i < 4; ++i)
            dp[4 * n + i] = s[4 * n + i] * (dp[4 * n + i] - (!kOwnKeys ? delta[i / 2] : i % 2 ? column.y : column.x));
        }
      }
      uint32_t left_values[kValues ? kScores / 8 : 1][4], left[kKeys ? kScores / 8 : 1][4], left_coarse[3][4];
      if constexpr (kValues) to_operand<T>(left_values, s, 1.0f);
      if constexpr (kKeys) to_operand<T>(left, dp, factor0);
      if constexpr (kKeys && kCoarse) coarse_operand<T>(left_coarse, dp, factor1, factor2);
      products_begin();
      if constexpr (kValues) gradient_product<T, D>(values, left_values, tile + M::kExtra);
      if constexpr (kKeys) gradient_product<T, D>(fine, left, tile);
      if constexpr (kKeys && kCoarse) gradient_product<T, D>(coarse, left_coarse, tile + M::kCoarseTile);
      products_commit();
      products_wait<0>();
      barrier_arrive(M::empty(barriers, stage));
    }
  }

  const float scale = static_cast<float>(p.scale);
  const int out_head = kOwnKeys ? walk.first_head / static_cast<int>(p.heads / p.key_heads) : walk.first_head;
  float parts[3] = {};  // of da
  // <dq, q> of one level, from the block's own rows: of which tile, in which slots.
  auto weight_part = [&](int l, uint32_t tile, int slot, int half, auto value) {
    if (rows[half] >= limit) return;
    const uint32_t start = tile + panel_offset(64, warp * 16 + lane / 4 + 8 * slot, 0) + 4 * (lane % 4);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      uint32_t pair;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"((start ^ (n % 8 << 4)) + n / 8 * 64 * 128));
      const float2 q = unpack(pair, T());
      parts[l] += scale * (value(4 * n + 2 * half) * q.x + value(4 * n + 2 * half + 1) * q.y);
    }
  };
  const View* const to = kOwnKeys ? gr.dk : gr.dq;
  const float* a = static_cast<const float*>(p.weights) + walk.first_head * p.levels;
  auto weight = [&](int l) { return l >= p.levels ? 0.0f : kOwnKeys ? scale : scale * a[l]; };
  auto fine_value = [&](int i) { return fine[i]; };
  auto value1 = [&](int i) { return coarse[i]; };
  auto value2 = [&](int i) { return coarse[i + 2]; };
  const bool even = lane / 4 % 2 == 0;  // of two neighbours at level 1, the one that has their row of level 2
  if constexpr (kKeys && kCoarse) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) {
      if (i & 2) coarse[i] += __shfl_xor_sync(~0u, coarse[i], 4);
    }
  }
  if constexpr (!kOwnKeys) {
    weight_part(0, own, 0, 0, fine_value);
    weight_part(0, own, 1, 1, fine_value);
    if constexpr (kCoarse) {
      weight_part(1, own + 2 * M::kOwnTile, 0, 0, value1);
      if (p.levels > 2 && even) weight_part(2, own + 2 * M::kOwnTile, 1, 0, value2);
    }
  }
  // Results take the places of the rows they are gradients of.
  group_sync(1 + group);
  if constexpr (kKeys) put_rows<T, D>(own, weight(0), fine_value);
  if constexpr (kValues) put_rows<T, D>(own + M::kOwnTile, 1.0f, [&](int i) { return values[i]; });
  if constexpr (kKeys && kCoarse)
    put_rows<T, D>(own + 2 * M::kOwnTile, 1.0f, [&](int i) { return coarse[i] * (i & 2 ? weight(2) : weight(1)); });
  __syncwarp();
  auto fine_row = [&](int slot) {
    const int at = own_first + own_row(slot);
    return at < tokens ? at : -1;
  };
  auto rows_to = [&](const View& view) { return rows_of<T>(view, walk.batch, out_head); };
  if constexpr (kKeys) store_rows<D>(own, rows_to(to[0]), p.head_size, fine_row);
  if constexpr (kValues) store_rows<D>(own + M::kOwnTile, rows_to(gr.dv), p.value_size, fine_row);
  if constexpr (kKeys && kCoarse) {
    store_rows<D>(own + 2 * M::kOwnTile, rows_to(to[1]), p.head_size, [&](int slot) {
      const int at = (own_first + own_row(slot)) / 2;
      return (slot & 8) == 0 && at < (tokens + 1) / 2 ? at : -1;
    });
    if (p.levels > 2)
      store_rows<D>(own + 2 * M::kOwnTile, rows_to(to[2]), p.head_size, [&](int slot) {
        const int at = (own_first + own_row(slot)) / 4;
        return (slot & 9) == 8 && at < (tokens + 3) / 4 ? at : -1;
      });
  }
  barrier_arrive(M::empty(barriers, M::kStages + buffer));
  if constexpr (!kOwnKeys) {
    const int64_t line = static_cast<int64_t>(walk.batch) * p.heads + walk.first_head;
    float* const total = arguments.weight_parts + (line * parts_of(p) + own_first / 16 + warp) * kCudaLevels;
#pragma unroll
    for (int l = 0; l < (kCoarse ? 3 : 1); ++l) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) parts[l] += __shfl_xor_sync(~0u, parts[l], offset);
      if (lane == 0) total[l] = parts[l];
    }
  }
}

template <class T, int D, bool kCoarse, bool kOwnKeys, Part kPart>
__global__ void __launch_bounds__(kThreads, 1) hkt_backward_hopper_kernel(const __grid_constant__ Arguments a) {
  using M = Plan<D, kCoarse>;
  extern __shared__ unsigned char raw[];
  const uint32_t at = shared_address(raw), memory = (at + 1023) / 1024 * 1024, barriers = memory + M::kBarriers;
  unsigned char* const start = raw + (memory - at);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < M::kStages + M::kOwnBuffers; ++stage) {
      barrier_init(M::full(barriers, stage), 128);
      barrier_init(M::empty(barriers, stage), kGroups * 128);  // every thread says so
    }
  }
  fence_shared();
  __syncthreads();
  if (threadIdx.x < 128) {
    fewer_registers<D == 64 ? 88 : 56>();
    bring<T, D, kCoarse, kOwnKeys, kPart>(a, memory, barriers);
  } else {
    more_registers<D == 64 ? 208 : 224>();
    Walk walk;
    int step = 0;
    for (int turn = 0; find_work<kOwnKeys>(a.p, turn, &walk); ++turn)
      gather<T, D, kCoarse, kOwnKeys, kPart>(a, walk, turn, step, memory, start, barriers);
  }
}

template <class T, int D, bool kCoarse, bool kOwnKeys, Part kPart>
cudaError_t launch_one(const Arguments& a, cudaStream_t stream) {
  const auto kernel = hkt_backward_hopper_kernel<T, D, kCoarse, kOwnKeys, kPart>;
  constexpr int kMemory = Plan<D, kCoarse>::kSize;
  if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory);
      e != cudaSuccess)
    return e;
  const int64_t pieces = (a.p.tokens + kRows - 1) / kRows * (kOwnKeys ? a.p.key_heads : a.p.heads) * a.p.batch;
  kernel<<<grid_for(pieces, a.p.causal && a.p.tokens >= kLong), kThreads, kMemory, stream>>>(a);
  return cudaGetLastError();
}

template <class T, int D, bool kCoarse>
cudaError_t launch_all(const Arguments& a, cudaStream_t stream) {
  constexpr bool kSplit = D > 64 && kCoarse;
  if constexpr (kSplit) {
    if (const cudaError_t e = launch_one<T, D, kCoarse, true, Part::kValues>(a, stream); e != cudaSuccess) return e;
  }
  if (const cudaError_t e = launch_one < T, D, kCoarse, true, kSplit ? Part::kKeys : Part::kAll > (a, stream);
      e != cudaSuccess)
    return e;
  return launch_one<T, D, kCoarse, false, Part::kAll>(a, stream);
}

template <class T>
cudaError_t launch(const Arguments& a, cudaStream_t stream) {
  const bool small = a.p.head_size <= 64 && a.p.value_size <= 64;
  if (a.p.levels == 1) return small ? launch_all<T, 64, false>(a, stream) : launch_all<T, 128, false>(a, stream);
  return small ? launch_all<T, 64, true>(a, stream) : launch_all<T, 128, true>(a, stream);
}

}  // namespace

bool hkt_backward_fits_hopper(const HktProblem& p, const HktGradients& g) {
  if (p.levels > 3 || p.head_size > 128 || p.value_size > 128 || p.bias.data != nullptr) return false;
  bool wide = is_wide(p.v, p.value_size) && is_wide(g.dout, p.value_size) && is_wide(g.dv, p.value_size);
  for (int l = 0; l < p.levels; ++l) {
    wide = wide && is_wide(p.q[l], p.head_size) && is_wide(p.k[l], p.head_size) && is_wide(g.dq[l], p.head_size) &&
           is_wide(g.dk[l], p.head_size) && is_streamable(p.q[l]) && is_streamable(p.k[l]);
  }
  wide = wide && is_streamable(p.v) && is_streamable(g.dout);
  return wide;
}

int64_t hkt_backward_hopper_parts(const HktProblem& p) { return parts_of(p); }

cudaError_t hkt_backward_hopper(const HktProblem& p, const HktOutputs& o, const HktGradients& g, const float* deltas,
                                float* weight_parts, cudaStream_t stream) {
  const Arguments a{p, o, g, deltas, weight_parts};
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(a, stream) : launch<__half>(a, stream);
}

}  // namespace strata::cuda
