// Around the HKT backward that computes every score once (hkt_backward_once_sm90.cu): before it D of every row and the
// powers of two of the fixed-point sums, after it dq and the parts of da from these sums.
#include <cmath>

#include "cuda/hkt_backward_once.h"
#include "cuda/hkt_kernels.h"
#include "cuda/hkt_scores.cuh"
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/storage.h"
#include "cuda/warp.cuh"

namespace strata::cuda {
namespace {

constexpr int kLanes = kOnceHeadSize / 8;  // lanes of a row, 16 bytes each
constexpr int kBlockRows = 256 / kLanes;   // of 256 threads
constexpr int kMaximaRows = 256;           // of a block of the first kernel

// Blocks are counted in one number, all heads of a tile one after the other.
struct BlockTile {
  int head, batch, tile;  // of its sequence
  unsigned at;            // of all sequences
  __device__ BlockTile(const HktSide& side, int64_t heads, int rows) {
    const auto count = static_cast<unsigned>(heads);
    head = static_cast<int>(blockIdx.x % count);
    at = blockIdx.x / count;
    const HktTile found = locate_tile(side, at, rows);
    batch = static_cast<int>(found.sequence);
    tile = static_cast<int>(found.tile);
  }
};

// Eight channels of a row, zeros beyond its channels and where it is not there.
template <class T>
__device__ uint4 load_chunk(const Rows<const T>& rows, int row, int limit, int channels) {
  const int channel = static_cast<int>(threadIdx.x) % kLanes * 8;
  if (row >= limit || channel >= channels) return {};
  return *reinterpret_cast<const uint4*>(&rows.at(row, channel));
}
template <class T>
__device__ void unpack_chunk(float (&x)[8], const uint4& bits) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack(words[i], T());
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}
template <class F>
__device__ float over_lanes(float x, const F& f) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x = f(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}
__device__ inline float largest(const float (&x)[8]) {
  float max = 0;
#pragma unroll
  for (int c = 0; c < 8; ++c) max = fmaxf(max, fabsf(x[c]));
  return over_lanes(max, [](float a, float b) { return fmaxf(a, b); });
}
// The length of a row; a bound of it where squares over- or underflow.
__device__ float length(const float (&x)[8]) {
  float sum = 0;
#pragma unroll
  for (int c = 0; c < 8; ++c) sum += x[c] * x[c];
  sum = over_lanes(sum, [](float a, float b) { return a + b; });
  const bool exact = sum > 1e-30f && sum < INFINITY;
  if (__all_sync(~0u, exact)) return sqrtf(sum);
  const float max = largest(x);
  return exact ? sqrtf(sum) : fminf(8 * max, 3e38f);
}

// The longest value (blockIdx.y 0) and the largest number of the keys of level blockIdx.y - 1, of what is finite.
template <class T>
__global__ void maxima_kernel(const __grid_constant__ OnceArguments a) {
  const HktProblem& p = a.p;
  const BlockTile here(key_side(p), p.key_heads, kMaximaRows);
  const int level = static_cast<int>(blockIdx.y) - 1,
            limit = level_rows(static_cast<int>(length_of(key_side(p), here.batch)), max(level, 0));
  const Rows<const T> rows = rows_of<const T>(level < 0 ? p.v : p.k[level], here.batch, here.head);
  unsigned* const maxima = a.maxima + 8 * (here.batch * p.key_heads + here.head);
  const int first = here.tile * kMaximaRows;
  const int channels = level < 0 ? p.value_size : p.head_size;
  if (first >= limit) return;
  uint4 chunks[kMaximaRows / kBlockRows];  // all on their way before the first is used
#pragma unroll
  for (int i = 0; i < kMaximaRows / kBlockRows; ++i)
    chunks[i] = load_chunk(rows, first + i * kBlockRows + static_cast<int>(threadIdx.x) / kLanes, limit, channels);
  float most = 0;
  bool odd = false;
#pragma unroll
  for (int i = 0; i < kMaximaRows / kBlockRows; ++i) {
    float x[8];
    unpack_chunk<T>(x, chunks[i]);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const bool finite = fabsf(x[c]) < INFINITY;
      odd |= !finite;
      x[c] = finite ? x[c] : 0.0f;
    }
    if (level < 0) {
      most = fmaxf(most, length(x));
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) most = fmaxf(most, fabsf(x[c]));
    }
  }
  if (odd && level >= 0) maxima[kOddKeys] = 1;
  most = warp_max(most);
  // Numbers that are not negative have the order of their bits.
  if (threadIdx.x % 32 == 0) atomicMax(maxima + level + 1, __float_as_uint(most));
}

// 2^e with bound 2^e <= 2^20: sums are multiples of 2^(-e - 10).
__device__ float scale_of(double bound) {
  if (!(bound > 0) || isinf(bound)) return 1.0f;
  int exponent;
  frexp(bound, &exponent);
  return __int_as_float((127 + max(-126, min(126, 20 - exponent))) << 23);
}

// lse, D and the powers of two of 64 rows. dQ of a row is at most (2 |dO| max |v| + |dlse|) max |k|; that of a coarse
// row is the sum over its rows.
template <class T>
__global__ void rows_kernel(const __grid_constant__ OnceArguments a) {
  const HktProblem& p = a.p;
  const BlockTile part(query_side(p), p.heads, kPartRows);
  const int head = part.head, batch = part.batch, sub = static_cast<int>(blockIdx.y);
  const int first = part.tile * kPartRows + 64 * sub;
  if (first >= stored_rows(query_side(p), batch)) return;
  const int limit = static_cast<int>(length_of(query_side(p), batch));
  const int64_t line = hkt_line(p, batch, head);
  const unsigned* const maxima = a.maxima + (batch * p.key_heads + head / (p.heads / p.key_heads)) * 8;
  const Rows<const T> out = rows_of<const T>(a.o.out, batch, head), dout = rows_of<const T>(a.g.dout, batch, head);
  // With four levels the products have a fifth, of zeros.
  const int levels = p.levels == 4 ? 5 : p.levels;
  // The row, of all levels, whose power of two this thread computes.
  int slot = static_cast<int>(threadIdx.x), level = 0;
  while (level < levels && slot >= 64 >> level) slot -= 64 >> level++;
  const float largest_key = level < p.levels ? __uint_as_float(maxima[1 + level]) : 0.0f;
  __shared__ double bounds[64];
  constexpr int kSteps = 64 / kBlockRows;
  const float longest = __uint_as_float(maxima[0]);
  uint4 x[kSteps], y[kSteps];
  float lse[kSteps] = {}, dlse[kSteps] = {};
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {  // all on their way before the first is used
    const int row = first + i * kBlockRows + static_cast<int>(threadIdx.x) / kLanes;
    x[i] = load_chunk(dout, row, limit, p.value_size);
    y[i] = load_chunk(out, row, limit, p.value_size);
    if (row >= limit || threadIdx.x % kLanes != 0) continue;
    lse[i] = static_cast<const float*>(a.o.lse)[line + row];
    if (a.g.dlse != nullptr) dlse[i] = static_cast<const float*>(a.g.dlse)[line + row];
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = i * kBlockRows + static_cast<int>(threadIdx.x) / kLanes, row = first + at;
    float s[8], t[8], product = 0;
    unpack_chunk<T>(s, x[i]);
    unpack_chunk<T>(t, y[i]);
#pragma unroll
    for (int c = 0; c < 8; ++c) product += s[c] * t[c];
    product = over_lanes(product, [](float u, float v) { return u + v; });
    const float size = length(s);
    if (threadIdx.x % kLanes != 0) continue;
    bounds[at] = 2.0 * size * longest + fabs(static_cast<double>(dlse[i]));
    if (row >= limit) continue;
    a.lse2[line + row] = lse[i] == -INFINITY ? INFINITY : lse[i] * kLog2e;
    a.deltas[line + row] = product - dlse[i];
  }
  __syncthreads();
  if (level >= levels) return;
  double bound = 0;
  for (int i = 0; i < 1 << level; ++i) bound += bounds[(slot << level) + i];
  const int fine_tiles = once_tiles(p).fine;
  const int64_t row = ((static_cast<int64_t>(part.at) * kPartTiles + sub) * 64 >> level) + slot;
  a.scales[int64_t{head} * 128 * fine_tiles + once_level_begin(fine_tiles, level) + row] =
      scale_of(bound * largest_key);
}

// One warp: 16 rows of sums become dq.
template <class T, int D>
struct SumRows {
  const OnceArguments& a;
  int batch, head;
  int first_tile;  // of the sequence, at level 0
  uint32_t tile;   // 64 rows in shared memory for the results of four warps
  int limit;       // tokens that count
  float parts[5] = {};
  int warp = warp_of_thread() % 4, lane = lane_of_thread();

  __device__ float scale_at(int level, int row) const {
    const int fine = once_tiles(a.p).fine;
    return a.scales[int64_t{head} * 128 * fine + once_level_begin(fine, level) + (64 >> level) * first_tile + row];
  }

  // Rows of tile `index`. row(slot), level(slot): of its 64 rows; a row of -1 is not there.
  template <class Row, class Level>
  __device__ void store(int index, const Row& row, const Level& level, bool twice = false) {
    const int64_t at = head * once_tiles(a.p).all() + index;
    const int4* const from = reinterpret_cast<const int4*>(a.sums + (at * 64 + warp * 16) * D) + lane;
    int sums[D / 2];
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int4 x = __ldcs(from + 32 * n);
      sums[4 * n] = x.x, sums[4 * n + 1] = x.y, sums[4 * n + 2] = x.z, sums[4 * n + 3] = x.w;
    }
    float factors[2], weights[2];
    bool broken[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = 16 * warp + lane / 4 + 8 * half, here = row(slot), l = level(slot);
      factors[half] = here < 0 ? 1.0f : scale_at(l, here);
      broken[half] = a.broken[at * 64 + slot] != 0;
      weights[half] = static_cast<const float*>(a.p.weights)[head * a.p.levels + l];
    }
    load_rows_of_queries(row, level);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
      factors[half] = row(16 * warp + lane / 4 + 8 * half) < 0 ? 0.0f : broken[half] ? NAN : 0x1p-10f / factors[half];
    float values[D / 2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) values[i] = static_cast<float>(sums[i]) * factors[i / 2 % 2];
    if (twice) {  // rows of level 4 stand in two slots
#pragma unroll
      for (int i = 0; i < D / 2; ++i) {
        if (i & 2) values[i] += __shfl_xor_sync(~0u, values[i], 4);
      }
    }
    finish(values, weights, row, level, twice);
  }

 private:
  template <class Row, class Level>
  __device__ void load_rows_of_queries(const Row& row, const Level& level) const {
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = 16 * warp + 4 * i + lane / 8, chunk = lane % 8, here = row(slot);
      const Rows<const T> from = rows_of<const T>(a.p.q[level(slot)], batch, head);
      x[i] = {};
      if (here >= 0 && here < level_rows(limit, level(slot)) && 8 * chunk < a.p.head_size)
        x[i] = *reinterpret_cast<const uint4*>(&from.at(here, 8 * chunk));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                       tile + panel_offset(64, 16 * warp + 4 * i + lane / 8, lane % 8)),
                   "r"(x[i].x), "r"(x[i].y), "r"(x[i].z), "r"(x[i].w)
                   : "memory");
  }
  template <class Row, class Level>
  __device__ void finish(const float (&values)[D / 2], const float (&level_weights)[2], const Row& row,
                         const Level& level, bool twice) {
    const float scale = static_cast<float>(a.p.scale);
    float weights[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = 16 * warp + lane / 4 + 8 * half, l = level(slot);
      const uint32_t start = tile + panel_offset(64, slot, 0) + 4 * (lane % 4);
      float part = 0;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        uint32_t pair;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(start ^ (n << 4)));
        const float2 q = unpack(pair, T());
        part += values[4 * n + 2 * half] * q.x + values[4 * n + 2 * half + 1] * q.y;
      }
      const bool counts = !(twice && half == 1 && lane / 4 % 2 == 1);
#pragma unroll
      for (int m = 0; m < 5; ++m) parts[m] += m == l && counts ? scale * part : 0.0f;
      weights[half] = scale * level_weights[half];
    }
    __syncwarp();
    stage_rows<T, D>(tile, 1.0f, [&](int i) { return values[i] * weights[i / 2 % 2]; });
    __syncwarp();
#pragma unroll 1
    for (int l = level(16 * warp); l <= level(16 * warp + 15); ++l)
      store_rows<D>(tile, rows_of<T>(a.g.dq[l], batch, head), a.p.head_size,
                    [&](int slot) { return level(slot) == l ? row(slot) : -1; });
    __syncwarp();
  }
};

// dq of a part.
template <class T, int D>
__global__ void __launch_bounds__(128, 4) dq_kernel(const __grid_constant__ OnceArguments a) {
  __shared__ alignas(1024) unsigned char memory[64 * 128];
  __shared__ float sums[4][5];
  const HktProblem& p = a.p;
  const BlockTile part(query_side(p), p.heads, kPartRows);
  const int stored = static_cast<int>(stored_rows(query_side(p), part.batch)), first = part.tile * kPartTiles;
  const int begin = once_first_tile(p, part.batch);  // tile of the sequence
  const int warp = warp_of_thread();
  SumRows<T, D> rows{
      a, part.batch, part.head, begin, shared_address(memory), static_cast<int>(length_of(query_side(p), part.batch))};
  const OnceTiles tiles = once_tiles(p);
  auto real = [&](int level, int row) { return level < p.levels && row < level_rows(stored, level) ? row : -1; };
#pragma unroll 1
  for (int i = first; i < first + kPartTiles && 64 * i < stored; ++i)
    rows.store(
        begin + i, [&](int slot) { return real(0, 64 * i + slot % 8 * 8 + slot / 8); }, [](int) { return 0; });
#pragma unroll 1
  for (int i = first / 2; p.levels > 1 && i < (first + kPartTiles) / 2 && 128 * i < stored; ++i)
    rows.store(
        tiles.fine + begin / 2 + i,
        [&](int slot) { return real(1, 64 * i + slot / 32 * 32 + slot % 8 * 4 + slot % 32 / 8); },
        [](int) { return 1; });
  const int share = tiles.per_upper;
#pragma unroll 1
  for (int i = first / share; p.levels > 2 && i < (first + kPartTiles) / share && 64 * share * i < stored; ++i) {
    const int index = tiles.fine + tiles.pairs + begin / share + i;
    if (share == 4) {
      rows.store(
          index, [&](int slot) { return real(2, 64 * i + slot / 16 * 16 + slot % 8 * 2 + slot % 16 / 8); },
          [](int) { return 2; });
    } else {  // 16 rows of level 2, 8 of level 3, 4 of level 4, each twice
      auto level = [&](int slot) { return slot % 32 < 16 ? 2 : slot % 32 < 24 ? 3 : min(4, p.levels - 1); };
      rows.store(
          index,
          [&](int slot) {
            const int tile = 2 * i + slot / 32, s = slot % 8;
            if (slot % 32 < 16) return real(2, 16 * tile + 2 * s + slot % 16 / 8);
            return slot % 32 < 24 ? real(3, 8 * tile + s) : real(4, 4 * tile + s / 2);
          },
          level, warp % 2 == 1);
    }
  }
#pragma unroll
  for (int l = 0; l < 5; ++l) {
    const float sum = warp_sum(rows.parts[l]);
    if (lane_of_thread() == 0) sums[warp][l] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= 5) return;
  const int64_t parts = tile_count(query_side(p), kPartRows);
  a.weight_parts[(part.head * parts + part.at) * kMmaLevels + threadIdx.x] =
      (sums[0][threadIdx.x] + sums[1][threadIdx.x]) + (sums[2][threadIdx.x] + sums[3][threadIdx.x]);
}

// The workspace: sums, broken rows and maxima, which begin as zeros, then what the kernels write.
struct Workspace {
  int64_t sums, broken, maxima, lse2, deltas, scales, parts, end;
};
Workspace workspace_of(const HktProblem& p) {
  const OnceTiles tiles = once_tiles(p);
  const int64_t numbers = (hkt_lines(p) * 4 + 15) / 16 * 16;
  Workspace w{};
  w.broken = w.sums + p.heads * tiles.all() * 64 * once_channels(p) * 4;
  w.maxima = w.broken + p.heads * tiles.all() * 64;
  w.lse2 = w.maxima + p.batch * p.key_heads * 32;
  w.deltas = w.lse2 + numbers;
  w.scales = w.deltas + numbers;
  w.parts = w.scales + p.heads * tiles.fine * 128 * 4;
  w.end = w.parts + p.heads * tile_count(query_side(p), kPartRows) * kMmaLevels * 4;
  return w;
}

}  // namespace

size_t hkt_backward_once_workspace(const HktProblem& p) { return static_cast<size_t>(workspace_of(p).end); }

cudaError_t hkt_backward_once(const HktProblem& p, const HktOutputs& o, const HktGradients& g, void* workspace,
                              cudaStream_t stream) {
  const Workspace w = workspace_of(p);
  char* const base = static_cast<char*>(workspace);
  const OnceArguments a{p,
                        o,
                        g,
                        reinterpret_cast<int*>(base + w.sums),
                        reinterpret_cast<uint8_t*>(base + w.broken),
                        reinterpret_cast<unsigned*>(base + w.maxima),
                        reinterpret_cast<float*>(base + w.lse2),
                        reinterpret_cast<float*>(base + w.deltas),
                        reinterpret_cast<float*>(base + w.scales),
                        reinterpret_cast<float*>(base + w.parts)};
  if (const cudaError_t e = cudaMemsetAsync(base, 0, w.lse2, stream); e != cudaSuccess) return e;
  const int64_t parts = tile_count(query_side(p), kPartRows), key_blocks = tile_count(key_side(p), kMaximaRows);
  const auto query_grid = static_cast<unsigned>(parts * p.heads),
             key_grid = static_cast<unsigned>(key_blocks * p.key_heads);
  return with_16_bit_storage(p.dtype, [&](auto storage) {
    using T = decltype(storage);
    maxima_kernel<T><<<dim3(key_grid, p.levels + 1), 256, 0, stream>>>(a);
    rows_kernel<T><<<dim3(query_grid, kPartTiles), 256, 0, stream>>>(a);
    if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    if (const cudaError_t e = hkt_backward_once_products(a, stream); e != cudaSuccess) return e;
    const auto dq = once_channels(p) == 32 ? dq_kernel<T, 32> : dq_kernel<T, 64>;
    dq<<<query_grid, 128, 0, stream>>>(a);
    if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    return hkt_backward_weights(p, a.weight_parts, parts, g, stream);
  });
}

}  // namespace strata::cuda
