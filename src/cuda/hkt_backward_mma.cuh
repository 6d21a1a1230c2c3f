// HKT backward with mma.sync (compute capability 8.0 and newer), deterministic: no atomics, every gradient has one
// owner. One kernel owns keys and loops over queries (dk, dv), one owns queries and loops over keys (dq, da); both
// compute the scores of 64 x 64 tiles anew.
//
//   P = exp(S - lse)    dS = P * (dO V^T - D)    G^(l) = sums of dS over blocks of 2^l x 2^l, in registers
//   dv += P^T dO        dk^(l) += a_l G^(l)^T q^(l)        dq^(l) += a_l G^(l) k^(l)        (times the scale)
//
// P and G go to shared memory, as operands of the second round of products, whose rows are spread over all warps.
#pragma once

#include <cmath>

#include "base/philox.h"
#include "cuda/device.h"
#include "cuda/hkt_backward_mma_tile.cuh"
#include "cuda/hkt_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/views.h"
#include "cuda/warp.cuh"

namespace strata::cuda {
namespace {

struct Extra {
  const float* deltas;  // D, laid out as lse
  float* weight_parts;  // (heads, query blocks of all sequences, kMmaLevels): parts of da
  bool aligned;
};
struct Arguments {
  HktProblem p;
  HktOutputs o;
  HktGradients g;
  Extra extra;
};

// What a block computes: the owner's 64 rows, and the tiles of the other side that they meet.
template <class Tile>
struct Block {
  using T = typename Tile::T;
  static constexpr int D = Tile::D, kThreads = Tile::kThreads, kQueries = Tile::kQueries, kKeys = Tile::kKeys;
  static constexpr int kOther = Tile::kOther;
  static constexpr bool kOwnKeys = Tile::kOwnKeys;
  const Arguments& a;
  const HktProblem& p;
  Layout<Tile> layout;
  uint32_t base;
  float* row_numbers;  // lse of the tile's queries, then D
  int64_t tile;        // of the owner's, counted through all sequences
  int batch, own_first, first_block, last_block, first_head, heads, key_head;
  SequenceLimits limits;

  __device__ Block(const Arguments& arguments, unsigned char* memory)
      : a(arguments),
        p(arguments.p),
        layout{arguments.p.levels},
        base(shared_address(memory)),
        row_numbers(reinterpret_cast<float*>(memory + layout.row_numbers())) {
    const int group = static_cast<int>(p.heads / p.key_heads);
    tile = kOwnKeys ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    const HktTile at = locate_tile(kOwnKeys ? key_side(p) : query_side(p), tile, kSide);
    batch = static_cast<int>(at.sequence);
    own_first = static_cast<int>(at.tile) * kSide;
    limits = SequenceLimits(p, batch);
    const int2 blocks =
        kOwnKeys ? limits.query_tiles(p, own_first, kSide, kOther) : limits.key_tiles(p, own_first, kSide, kOther);
    first_block = blocks.x;
    last_block = blocks.y;
    first_head = static_cast<int>(blockIdx.y) * (kOwnKeys ? group : 1);
    heads = kOwnKeys ? group : 1;
    key_head = first_head / group;
  }

  // Rows that only fill a level up are zeros throughout.
  __device__ void clear(unsigned char* memory) const {
    for (int at = static_cast<int>(threadIdx.x) * 16; at < layout.row_numbers(); at += kThreads * 16)
      *reinterpret_cast<uint4*>(memory + at) = make_uint4(0, 0, 0, 0);
    __syncthreads();
  }
  __device__ void load_queries(int head, int first) const {
    load_levels<T, D, kThreads, kQueries>(base + layout.queries(), p.q, p.levels, batch, head, first, limits.queries,
                                          p.head_size, a.extra.aligned, [](int l, int r) { return query_slot(l, r); });
    load_tile<D, kThreads>(base + layout.dout(), rows_of<const T>(a.g.dout, batch, head), first, kQueries,
                           limits.queries, p.value_size, a.extra.aligned, [](int r) { return query_slot(0, r); });
    const int64_t line = hkt_line(p, batch, head);
    for (int r = static_cast<int>(threadIdx.x); r < 2 * kQueries; r += kThreads) {
      const int at = first + r % kQueries;
      const float* from = r < kQueries ? static_cast<const float*>(a.o.lse) : a.extra.deltas;
      row_numbers[r] = at < limits.queries ? from[line + at] : (r < kQueries ? -INFINITY : 0.0f);
    }
  }
  __device__ void load_keys(int first) const {
    load_levels<T, D, kThreads, kKeys>(base + layout.keys(), p.k, p.levels, batch, key_head, first, limits.keys,
                                       p.head_size, a.extra.aligned,
                                       [](int l, int r) { return key_slot<kTiles>(l, r); });
    load_tile<D, kThreads>(base + layout.values(), rows_of<const T>(p.v, batch, key_head), first, kKeys, limits.keys,
                           p.value_size, a.extra.aligned, [](int r) { return key_slot<kTiles>(0, r); });
  }
};

// The 32 queries x 16 keys of a warp in a tile.
template <class Tile>
struct WarpScores {
  using T = typename Tile::T;
  static constexpr int D = Tile::D, kQueries = Tile::kQueries, kKeys = Tile::kKeys;
  static constexpr bool kOwnKeys = Tile::kOwnKeys;
  using Scores = ScoreTile<T, D, kQueries, kKeys, kTiles>;
  const Block<Tile>& block;
  int lane, row, key;  // first query and key, in the tile
  float s[2][kTiles][4], dp[2][kTiles][4] = {};

  __device__ explicit WarpScores(const Block<Tile>& b)
      : block(b),
        lane(lane_of_thread()),
        row(warp_of_thread() / (kKeys / 16) * 32),
        key(warp_of_thread() % (kKeys / 16) * 16) {}

  // s: scores; dp: dO V^T.
  __device__ void products(const LevelWeights& w) {
    const uint32_t base = block.base;
    const Layout<Tile>& layout = block.layout;
    const Scores tile{base + layout.queries(), base + layout.keys(), row, key};
    tile.scores(s, block.p.levels, w);
    Scores::finest(dp, base + layout.dout() + tile_offset<D>(row + lane % 16, lane / 16),
                   base + layout.values() + tile_offset<D>(key + lane / 16 * 8 + lane % 8, lane / 8 % 2));
  }

  // s becomes P, dp becomes dS, and dbias is stored.
  __device__ void softmax_gradient(int head, int first_row, int first_key, float full_scale) {
    const HktProblem& p = block.p;
    const View& dbias_view = block.a.g.dbias;
    const Rows<const T> bias = rows_of<const T>(p.bias, block.batch, head);
    const Rows<T> dbias = rows_of<T>(dbias_view, block.batch, head);
    const float slope = p.slopes == nullptr ? 0.0f : static_cast<const float*>(p.slopes)[head] * kLog2e;
    const bool drop = p.dropout.probability > 0;
    const uint64_t random = drop ? dropout_key(p.dropout.state) : 0;
    const uint32_t threshold = dropout_threshold(p.dropout.probability);
    const float kept_factor = static_cast<float>(dropout_factor(threshold));
#pragma unroll
    for (int a = 0; a < 2; ++a) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at_row = row + row_of_slot(a, lane / 4 + e / 2 * 8), query = first_row + at_row;
        const float lse = block.row_numbers[at_row], delta = block.row_numbers[kQueries + at_row];
        const auto visible = block.limits.visible_keys(p, lse != -INFINITY ? query : block.limits.queries);
        const int column_key = first_key + key + key_of_slot<kTiles>(0, 2 * (lane % 4) + e % 2);
        uint32_t kept = 0;
        if (drop) kept = kept_bits(random, threshold, block.batch, head, query, column_key / 8) >> column_key % 8;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const int at_key = column_key + n;
          float score = s[a][n][e] * full_scale - lse * kLog2e;
          if (!visible.has(at_key)) {
            s[a][n][e] = dp[a][n][e] = 0;
            continue;
          }
          score -= slope * static_cast<float>(abs(query - at_key));
          if (p.bias.data != nullptr) score += static_cast<float>(bias.at(query, at_key)) * kLog2e;
          const float factor = !drop ? 1.0f : (kept >> n & 1) != 0 ? kept_factor : 0.0f, weight = fast_exp2(score);
          s[a][n][e] = weight * factor;
          dp[a][n][e] = weight * (dp[a][n][e] * factor - delta);
          if (!kOwnKeys && dbias_view.data != nullptr) dbias.at(query, at_key) = static_cast<T>(dp[a][n][e]);
        }
      }
    }
  }

  // P and G to shared memory, in the order of slots. factor: of the levels of G.
  __device__ void store(const float (&factor)[kMmaLevels]) const {
    const uint32_t base = block.base;
    const Layout<Tile>& layout = block.layout;
#pragma unroll
    for (int a = 0; a < 2; ++a) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const uint32_t place = tile_offset<kSide>(row + 16 * a + lane / 4 + 8 * half, key / 8 + n) + lane % 4 * 4;
          if (kOwnKeys)
            store_pair(base + layout.weights() + place, pack(s[a][n][2 * half], s[a][n][2 * half + 1], T()));
          store_pair(base + layout.sums() + place,
                     pack(dp[a][n][2 * half] * factor[0], dp[a][n][2 * half + 1] * factor[0], T()));
        }
      }
    }
    if (block.p.levels > 1) store_sums<T, kQueries>(dp, base + layout.sums(), row, key, block.p.levels, factor);
  }
};

// dk of all levels, and dv.
template <class Tile>
__device__ void store_key_gradients(const Block<Tile>& block, LevelSums<Tile>& sums,
                                    const float (&dv)[Product<Tile, 0>::kColumns][4]) {
  using T = typename Tile::T;
  const HktProblem& p = block.p;
  const float scale = static_cast<float>(p.scale);
  const int tokens = block.limits.key_rows(p);
  auto key_of = [](int l, int slot) {
    return l > 0 ? slot : (slot & ~15) + key_of_slot<kTiles>(slot / 8 % 2, slot % 8);
  };
  sums.each_level(p.levels, [&](int l, auto product, auto& acc) {
    const Rows<T> dk = rows_of<T>(block.a.g.dk[l], block.batch, block.key_head);
    product.each(acc, [&](int slot, int channel, float value) {
      const int at = (block.own_first >> l) + key_of(l, slot);
      if (slot < (kSide >> l) && at < level_rows(tokens, l) && channel < p.head_size)
        dk.at(at, channel) = static_cast<T>(value * scale);
    });
  });
  const Rows<T> to = rows_of<T>(block.a.g.dv, block.batch, block.key_head);
  Product<Tile, 0>::each(dv, [&](int slot, int channel, float value) {
    const int at = block.own_first + key_of(0, slot);
    if (at < tokens && channel < p.value_size) to.at(at, channel) = static_cast<T>(value);
  });
}

// dq of all levels, and this block's part of da_l = scale sum <G k, q>.
template <class Tile>
__device__ void store_query_gradients(const Block<Tile>& block, LevelSums<Tile>& sums) {
  using T = typename Tile::T;
  __shared__ float parts[Tile::kWarps];
  const HktProblem& p = block.p;
  const float scale = static_cast<float>(p.scale);
  const int tokens = block.limits.query_rows(p), head = block.first_head;
  const float* a = static_cast<const float*>(p.weights) + head * p.levels;
  sums.each_level(p.levels, [&](int l, auto product, auto& acc) {
    const Rows<T> dq = rows_of<T>(block.a.g.dq[l], block.batch, head);
    const Rows<const T> q = rows_of<const T>(p.q[l], block.batch, head);
    float part = 0;
    product.each(acc, [&](int slot, int channel, float value) {
      const int at = (block.own_first >> l) + (l > 0 ? slot : (slot & ~31) + row_of_slot(slot / 16 % 2, slot % 16));
      if (slot >= (kSide >> l) || at >= level_rows(tokens, l) || channel >= p.head_size) return;
      dq.at(at, channel) = static_cast<T>(value * scale * a[l]);
      if (at < level_rows(block.limits.queries, l)) part += value * scale * static_cast<float>(q.at(at, channel));
    });
    part = warp_sum(part);
    if (lane_of_thread() == 0) parts[warp_of_thread()] = part;
    __syncthreads();
    if (threadIdx.x == 0) {
      float total = 0;
      for (const float one : parts) total += one;
      block.a.extra.weight_parts[(static_cast<int64_t>(head) * gridDim.x + block.tile) * kMmaLevels + l] = total;
    }
    __syncthreads();
  });
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::D == 64 ? 2 : 1)
    hkt_backward_kernel(const __grid_constant__ Arguments args) {
  constexpr bool kOwnKeys = Tile::kOwnKeys;
  constexpr int kOther = Tile::kOther;
  extern __shared__ __align__(1024) unsigned char memory[];
  const HktProblem& p = args.p;
  const Block<Tile> block(args, memory);
  const Layout<Tile>& layout = block.layout;
  block.clear(memory);
  if (kOwnKeys) {
    block.load_keys(block.own_first);
  } else {
    block.load_queries(block.first_head, block.own_first);
  }

  LevelSums<Tile> sums;
  float dv[kOwnKeys ? Product<Tile, 0>::kColumns : 1][4] = {};
  for (int head = block.first_head; head < block.first_head + block.heads; ++head) {
    const float* a = static_cast<const float*>(p.weights) + head * p.levels;
    const LevelWeights w = level_weights(a, p.levels);
    const float full_scale = w.finest * static_cast<float>(p.scale) * kLog2e;
    float factor[kMmaLevels];  // of G: what differs between the heads that share keys
#pragma unroll
    for (int l = 0; l < kMmaLevels; ++l) factor[l] = kOwnKeys && l < p.levels ? a[l] : 1.0f;
    for (int i = block.first_block; i < block.last_block; ++i) {
      const int first_row = kOwnKeys ? i * kOther : block.own_first,
                first_key = kOwnKeys ? block.own_first : i * kOther;
      if (kOwnKeys) {
        block.load_queries(head, first_row);
      } else {
        block.load_keys(first_key);
      }
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      WarpScores<Tile> scores(block);
      scores.products(w);
      scores.softmax_gradient(head, first_row, first_key, full_scale);
      scores.store(factor);
      __syncthreads();
      const uint32_t other = block.base + (kOwnKeys ? layout.queries() : layout.keys());
      sums.each_level(p.levels, [&](int l, auto product, auto& acc) {
        product.add(acc, block.base + layout.sums() + level_begin(Tile::kQueries, l) * kSide * 2,
                    other + level_begin(kOther, l) * Tile::D * 2);
      });
      if constexpr (kOwnKeys) Product<Tile, 0>::add(dv, block.base + layout.weights(), block.base + layout.dout());
      __syncthreads();
    }
  }
  if constexpr (kOwnKeys) {
    store_key_gradients(block, sums, dv);
  } else {
    store_query_gradients(block, sums);
  }
}

template <class T>
__global__ void zero_bias_kernel(const __grid_constant__ HktProblem p, View dbias) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= p.batch * p.heads * p.tokens * p.key_tokens) return;
  const int64_t key = at % p.key_tokens, row = at / p.key_tokens % p.tokens, line = at / p.key_tokens / p.tokens;
  rows_of<T>(dbias, line / p.heads, line % p.heads).at(row, key) = static_cast<T>(0.0f);
}

template <class Tile>
cudaError_t launch_owner(const Arguments& a, cudaStream_t stream) {
  const HktProblem& p = a.p;
  const auto kernel = hkt_backward_kernel<Tile>;
  const int memory = Layout<Tile>{p.levels}.size();
  if (const cudaError_t e = allow_shared_memory(kernel, memory); e != cudaSuccess) return e;
  const dim3 grid(static_cast<unsigned>(tile_count(Tile::kOwnKeys ? key_side(p) : query_side(p), kSide)),
                  static_cast<unsigned>(Tile::kOwnKeys ? p.key_heads : p.heads));
  if (grid.x == 0) return cudaSuccess;
  kernel<<<grid, Tile::kThreads, memory, stream>>>(a);
  return cudaGetLastError();
}

// Calls run(owner of keys, owner of queries) with the largest tiles that this chip's shared memory holds; false where
// it holds none.
template <class T, class Run>
bool with_tiles(const HktProblem& p, const Run& run) {
  const int available = shared_memory_per_block();
  auto fits = [&](auto keys, auto queries) {
    return Layout<decltype(keys)>{p.levels}.size() <= available &&
           Layout<decltype(queries)>{p.levels}.size() <= available;
  };
  auto run_if_it_fits = [&](auto keys, auto queries) {
    if (!fits(keys, queries)) return false;
    run(keys, queries);
    return true;
  };
  const int widest = p.head_size > p.value_size ? p.head_size : p.value_size;
  if (widest <= 64) return run_if_it_fits(Tile<T, 64, true, 64>(), Tile<T, 64, false, 64>());
  if (widest <= 128)
    return run_if_it_fits(Tile<T, 128, true, 64>(), Tile<T, 128, false, 64>()) ||
           run_if_it_fits(Tile<T, 128, true, 32>(), Tile<T, 128, false, 32>());
  return run_if_it_fits(Tile<T, 256, true, 64>(), Tile<T, 256, false, 64>()) ||
         run_if_it_fits(Tile<T, 256, true, 32>(), Tile<T, 256, false, 32>());
}

}  // namespace

template <class T>
cudaError_t hkt_backward_mma(const HktProblem& p, const HktOutputs& o, const HktGradients& g, const float* deltas,
                             float* weight_parts, cudaStream_t stream) {
  Arguments a{p, o, g, {deltas, weight_parts, is_aligned(p.v, p.value_size) && is_aligned(g.dout, p.value_size)}};
  for (int l = 0; l < p.levels; ++l)
    a.extra.aligned = a.extra.aligned && is_aligned(p.q[l], p.head_size) && is_aligned(p.k[l], p.head_size);
  const int64_t pairs = p.batch * p.heads * p.tokens * p.key_tokens;
  if (g.dbias.data != nullptr && pairs > 0) zero_bias_kernel<T><<<blocks_for(pairs, 256), 256, 0, stream>>>(p, g.dbias);
  cudaError_t e = cudaErrorInvalidConfiguration;
  with_tiles<T>(p, [&](auto keys, auto queries) {
    e = launch_owner<decltype(keys)>(a, stream);
    if (e == cudaSuccess) e = launch_owner<decltype(queries)>(a, stream);
  });
  return e;
}

}  // namespace strata::cuda
