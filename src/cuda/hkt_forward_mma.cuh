// HKT forward on tensor cores. A block has 128 queries, four warps of 32, and walks over tiles of 64 keys with an
// online softmax; where shared memory is short, tiles are smaller. While the scores of a tile are computed its values
// arrive, and while those are summed up the next keys do.
#pragma once

#include <cmath>

#include "cuda/device.h"
#include "cuda/hkt_cuda_kernels.h"
#include "cuda/hkt_scores.cuh"

namespace strata::cuda {
namespace {

template <class T_, int D_, int DV_, int kRows_, int kKeys_>
struct Tile {
  using T = T_;
  static constexpr int D = D_, DV = DV_, kRows = kRows_, kKeys = kKeys_, kThreads = kRows, kTiles = kKeys / 8;
  // Bytes of shared memory: queries and keys of all levels, values.
  static int memory(int levels) {
    return (level_begin(kRows, levels) + level_begin(kKeys, levels)) * D * 2 + kKeys * DV * 2;
  }
};

// All levels of the keys of one tile.
template <class Tile>
__device__ void load_keys(uint32_t tile, const HktProblem& p, int batch, int key_head, int first, int limit,
                          bool wide) {
  using T = typename Tile::T;
  constexpr int D = Tile::D, kKeys = Tile::kKeys, kTiles = Tile::kTiles;
#pragma unroll
  for (int l = 0; l < kCudaLevels; ++l) {
    if (l >= p.levels) break;
    load_tile<D, Tile::kThreads>(tile + level_begin(kKeys, l) * D * 2, rows_of<const T>(p.k[l], batch, key_head),
                                 first >> l, kKeys >> l, (limit + (1 << l) - 1) >> l, p.head_size, wide,
                                 [l](int r) { return key_slot<kTiles>(l, r); });
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    hkt_forward_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o, bool wide) {
  using T = typename Tile::T;
  constexpr int D = Tile::D, DV = Tile::DV, kRows = Tile::kRows, kKeys = Tile::kKeys, kTiles = Tile::kTiles;
  constexpr int kThreads = Tile::kThreads;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunks = (p.value_size + DV - 1) / DV;
  const int batch = static_cast<int>(blockIdx.z) / chunks, head = static_cast<int>(blockIdx.y);
  const int value_first = static_cast<int>(blockIdx.z) % chunks * DV;
  const int key_head = head / static_cast<int>(p.heads / p.key_heads), tokens = static_cast<int>(p.tokens);
  // The last rows see most keys, and go first.
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const int limit = p.lengths == nullptr ? tokens : static_cast<int>(max(int64_t{0}, min(p.lengths[batch], p.tokens)));
  const int end = p.causal ? min(limit, first_row + kRows) : limit;  // keys any row sees
  const int blocks = first_row < limit ? (end + kKeys - 1) / kKeys : 0;

  const uint32_t queries = shared_address(memory);
  const uint32_t keys = queries + level_begin(kRows, p.levels) * D * 2;
  const uint32_t values = keys + level_begin(kKeys, p.levels) * D * 2;
#pragma unroll
  for (int l = 0; l < kCudaLevels; ++l) {
    if (l >= p.levels) break;
    load_tile<D, kThreads>(queries + level_begin(kRows, l) * D * 2, rows_of<const T>(p.q[l], batch, head),
                           first_row >> l, kRows >> l, (limit + (1 << l) - 1) >> l, p.head_size, wide,
                           [l](int r) { return query_slot(l, r); });
  }
  Rows<const T> value_rows = rows_of<const T>(p.v, batch, key_head);
  value_rows.data += value_first * value_rows.channel_stride;
  const int value_channels = min(DV, p.value_size - value_first);
  if (blocks > 0) load_keys<Tile>(keys, p, batch, key_head, 0, limit, wide);
  commit_copies();

  const LevelWeights w = level_weights(static_cast<const float*>(p.weights) + head * p.levels, p.levels);
  const float full_scale = w.finest * static_cast<float>(p.scale) * kLog2e;
  const bool with_bias = p.bias.data != nullptr;
  // exp2(factor S - peak), where the sign of the scale (and, with a bias, all of it) is in S already.
  const float factor = with_bias ? 1.0f : fabsf(full_scale);
  const Rows<const T> bias = rows_of<const T>(p.bias, batch, head);

  float out[2][DV / 8][4] = {}, peak[2][2], sum[2][2] = {};
  for (auto& half : peak) half[0] = half[1] = -INFINITY;
  const int own_first = first_row + warp * 32;
  const ScoreTile<T, D, kRows, kKeys, kTiles> tile{queries, keys, warp * 32, 0};

  const uint32_t value_address = values + tile_offset<DV>(lane % 16, lane / 16);

  for (int block = 0; block < blocks; ++block) {
    const int first_key = block * kKeys;
    wait_copies<0>();
    __syncthreads();  // the keys are here, and nobody reads the values of the last tile any more
    load_tile<DV, kThreads>(values, value_rows, first_key, kKeys, limit, value_channels, wide,
                            [](int r) { return key_slot<kTiles>(0, r); });
    commit_copies();

    float s[2][kTiles][4];
    tile.scores(s, p.levels, w);

    const bool edge = first_key + kKeys > limit || (p.causal && first_key + kKeys > own_first + 1) || with_bias ||
                      own_first + 32 > limit;
    if (full_scale < 0 && !with_bias) {
#pragma unroll
      for (int a = 0; a < 2; ++a)
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[a][n][e] = -s[a][n][e];
    }
    if (edge) {
#pragma unroll
      for (int a = 0; a < 2; ++a) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = own_first + row_of_slot(a, lane / 4 + (e / 2) * 8);
          const int visible = row < limit ? (p.causal ? min(limit, row + 1) : limit) : 0;
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            const int key = first_key + key_of_slot<kTiles>(n, 2 * (lane % 4) + e % 2);
            if (key >= visible) {
              s[a][n][e] = -INFINITY;
            } else if (with_bias) {
              s[a][n][e] = s[a][n][e] * full_scale + static_cast<float>(bias.at(row, key)) * kLog2e;
            }
          }
        }
      }
    }

    // Online softmax; the four lanes of a row hold its columns.
#pragma unroll
    for (int a = 0; a < 2; ++a) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = peak[a][half];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) top = fmaxf(top, fmaxf(s[a][n][2 * half], s[a][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float base = top == -INFINITY ? 0.0f : top * factor;
        const float shrink = fast_exp2(peak[a][half] * factor - base);  // of what was summed so far
        peak[a][half] = top;
        float add = 0;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[a][n][e] = fast_exp2(s[a][n][e] * factor - base);
            add += s[a][n][e];
          }
        }
        sum[a][half] = sum[a][half] * shrink + add;
#pragma unroll
        for (int n = 0; n < DV / 8; ++n) {
          out[a][n][2 * half] *= shrink;
          out[a][n][2 * half + 1] *= shrink;
        }
      }
    }

    wait_copies<0>();
    __syncthreads();  // the values are here, and nobody reads the keys any more
    if (block + 1 < blocks) load_keys<Tile>(keys, p, batch, key_head, first_key + kKeys, limit, wide);
    commit_copies();

#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk) {
      uint32_t weight[2][4];
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        weight[a][0] = pack(s[a][2 * kk][0], s[a][2 * kk][1], T());
        weight[a][1] = pack(s[a][2 * kk][2], s[a][2 * kk][3], T());
        weight[a][2] = pack(s[a][2 * kk + 1][0], s[a][2 * kk + 1][1], T());
        weight[a][3] = pack(s[a][2 * kk + 1][2], s[a][2 * kk + 1][3], T());
      }
#pragma unroll
      for (int n = 0; n < DV / 8; n += 2) {
        uint32_t v[4];
        load_matrices_transposed(v, (value_address ^ (n << 4)) + kk * 16 * DV * 2);
#pragma unroll
        for (int a = 0; a < 2; ++a) {
          multiply_add(out[a][n], weight[a], v[0], v[1], T());
          multiply_add(out[a][n + 1], weight[a], v[2], v[3], T());
        }
      }
    }
  }

  const Rows<T> result = rows_of<T>(o.out, batch, head);
  float* lse = static_cast<float*>(o.lse) + (static_cast<int64_t>(batch) * p.heads + head) * p.tokens;
#pragma unroll
  for (int a = 0; a < 2; ++a) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[a][half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const int row = own_first + row_of_slot(a, lane / 4 + half * 8);
      if (row >= tokens) continue;
      const float inverse = total > 0 ? 1.0f / total : (total == 0 ? 0.0f : total);  // NaN stays NaN
      if (lane % 4 == 0 && value_first == 0)
        lse[row] = total == 0 ? -INFINITY : peak[a][half] * factor * kLn2 + logf(total);
#pragma unroll
      for (int n = 0; n < DV / 8; ++n) {
        const int channel = n * 8 + 2 * (lane % 4);
        const float x = out[a][n][2 * half] * inverse, y = out[a][n][2 * half + 1] * inverse;
        if (wide && channel < value_channels) {
          reinterpret_cast<uint32_t&>(result.at(row, value_first + channel)) = pack(x, y, T());
          continue;
        }
        if (channel < value_channels) result.at(row, value_first + channel) = static_cast<T>(x);
        if (channel + 1 < value_channels) result.at(row, value_first + channel + 1) = static_cast<T>(y);
      }
    }
  }
}

template <class Tile>
cudaError_t launch(const HktProblem& p, const HktOutputs& o, bool wide, cudaStream_t stream) {
  const int memory = Tile::memory(p.levels);
  const auto kernel = hkt_forward_kernel<Tile>;
  if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory);
      e != cudaSuccess)
    return e;
  const int64_t chunks = (p.value_size + Tile::DV - 1) / Tile::DV;
  const dim3 grid(static_cast<unsigned>((p.tokens + Tile::kRows - 1) / Tile::kRows), static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(p.batch * chunks));
  kernel<<<grid, Tile::kThreads, memory, stream>>>(p, o, wide);
  return cudaGetLastError();
}

// Calls run(tile) with the largest tile that this chip's shared memory holds; false where it holds none.
template <class T, class Run>
bool with_tile(const HktProblem& p, const Run& run) {
  const int available = device_properties().shared_memory;
  auto run_if_it_fits = [&](auto tile) {
    if (decltype(tile)::memory(p.levels) > available) return false;
    run(tile);
    return true;
  };
  if (p.head_size <= 64 && p.value_size <= 64) return run_if_it_fits(Tile<T, 64, 64, 128, 64>());
  if (p.head_size <= 128)
    return run_if_it_fits(Tile<T, 128, 128, 128, 64>()) || run_if_it_fits(Tile<T, 128, 128, 128, 32>());
  return run_if_it_fits(Tile<T, 256, 128, 128, 64>()) || run_if_it_fits(Tile<T, 256, 128, 128, 32>()) ||
         run_if_it_fits(Tile<T, 256, 128, 64, 32>());
}

}  // namespace

template <class T>
cudaError_t hkt_forward_mma(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  bool wide = is_wide(p.v, p.value_size) && is_wide(o.out, p.value_size);
  for (int l = 0; l < p.levels; ++l) wide = wide && is_wide(p.q[l], p.head_size) && is_wide(p.k[l], p.head_size);
  cudaError_t e = cudaErrorInvalidConfiguration;
  with_tile<T>(p, [&](auto tile) { e = launch<decltype(tile)>(p, o, wide, stream); });
  return e;
}

}  // namespace strata::cuda
