// Families of more than 16 children on tensor cores: a block has a tile of children and one head, a warp 16 of them,
// and goes through all children of the family, a chunk at a time. The tile gives the rows of the products; forward, and
// for the gradients of the queries, the chunks are keys, for the gradients of the keys they are queries. Every child
// has a row of its own at every level.
#pragma once

#include "cuda/device.h"
#include "cuda/hsa_nodes.cuh"
#include "cuda/tile16.cuh"

namespace strata::cuda {
namespace {

constexpr int kMostThreads = 32 * kWideTile / kTileRows;

// Shared memory: the tile's rows of all levels and of the values (or Y), the same of a chunk of `columns` children, and
// four numbers of each of these.
struct WideShape {
  int columns, memory;  // memory: bytes; columns 0: it does not fit
};
inline WideShape wide_shape(const HsaProblem& p, int tile) {
  const int row = (p.levels + 1) * (has_small_heads(p) ? 64 : 128) * 2;
  for (const int columns : {64, 32, 16}) {
    const int memory = (tile + columns) * row + columns * 16;
    if (memory <= std::min(shared_memory_per_block(), columns > 16 ? 112 << 10 : 1 << 20)) return {columns, memory};
  }
  return {};
}

// A tile of a wide family and one head.
template <class T, int D>
struct WideTile {
  const HsaArgs<T>& a;
  int64_t family;
  Head<T> head;
  int64_t node;
  const int32_t* children;
  int size, first, mine;    // children of the family; the tile's first, and the warp's
  int rows, columns, part;  // of the tile and a chunk; the number of the warp among those of its depth
  uint32_t memory;
  float4* numbers;  // of the children of a chunk

  // item: a tile of one depth and a head; first_tile: that depth's first one.
  __device__ WideTile(const HsaArgs<T>& args, int64_t item, int64_t first_tile, WideShape shape, unsigned char* start)
      : a(args),
        family(args.plan.tile_family[first_tile + item / args.p.heads]),
        head(args, family, item % args.p.heads),
        node(head.node(family)),
        children(args.plan.children + args.plan.child_begin[family]),
        size(args.plan.child_begin[family + 1] - args.plan.child_begin[family]),
        first(args.plan.tile_child[first_tile + item / args.p.heads]),
        mine(first + warp_of_thread() * kTileRows),
        rows(args.plan.tile_size),
        columns(shape.columns),
        part(static_cast<int>(item / args.p.heads) * (rows / kTileRows) + warp_of_thread()),
        memory(shared_address(start)),
        numbers(
            reinterpret_cast<float4*>(start + (args.p.levels + 1) * (args.plan.tile_size + shape.columns) * D * 2)) {}

  // Tensor l < levels of the tile, or of the chunk, is that of level l; tensor `levels` is v or Y.
  __device__ uint32_t own_tile(int tensor) const { return memory + tensor * rows * D * 2; }
  __device__ uint32_t own_rows(int tensor) const { return own_tile(tensor) + warp_of_thread() * kTileRows * D * 2; }
  __device__ uint32_t chunk_tile(int tensor) const { return own_tile(a.p.levels + 1) + tensor * columns * D * 2; }

  // Rows from .. from + count - 1 of a tensor; zeros for children that do not count. row(t): that of leaf t; means:
  // (node, width).
  template <class Row>
  __device__ void load_rows(uint32_t tile, int from, int count, int channels, const float* means, int width,
                            const Row& row) const {
    const int chunk = static_cast<int>(threadIdx.x) % (D / 8);
#pragma unroll 4
    for (int r = static_cast<int>(threadIdx.x) / (D / 8); r < count; r += static_cast<int>(blockDim.x) / (D / 8)) {
      const int32_t child = from + r < size ? children[from + r] : 0;
      const bool there = from + r < size && chunk * 8 < channels && head.weight(child) > 0;
      const uint32_t to = tile + tile_offset<D>(r, chunk);
      if (child >= 0) {
        cp_async(to, there ? row(child) + chunk * 8 : row(0), there ? 16 : 0);
        continue;
      }
      uint32_t packed[4] = {0, 0, 0, 0};
      if (there) {
        const float4* const mean = reinterpret_cast<const float4*>(means + head.node(~child) * width + chunk * 8);
        const float4 low = mean[0], high = mean[1];
        packed[0] = pack(low.x, low.y, T()), packed[1] = pack(low.z, low.w, T());
        packed[2] = pack(high.x, high.y, T()), packed[3] = pack(high.z, high.w, T());
      }
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(packed[0]), "r"(packed[1]), "r"(packed[2]),
                   "r"(packed[3]));
    }
  }
  // Queries of all levels, and Y (dout: null data for a forward); or keys of all levels, and values. stride: bytes of a
  // tensor.
  __device__ void load_queries(uint32_t tile, int from, int count, const ConstView& dout) const {
    const HsaProblem& p = a.p;
    for (int l = 0; l < p.levels; ++l)
      load_rows(tile + l * count * D * 2, from, count, p.head_size, a.n.q + l * p.head_size, p.levels * p.head_size,
                [&](int32_t t) { return head.template query_row<const T>(p.q[l], t, l); });
    if (dout.data != nullptr)
      load_rows(tile + p.levels * count * D * 2, from, count, p.value_size, a.n.Y, p.value_size,
                [&](int32_t t) { return head.template query_row<const T>(dout, t); });
  }
  __device__ void load_keys(uint32_t tile, int from, int count) const {
    const HsaProblem& p = a.p;
    for (int l = 0; l < p.levels; ++l)
      load_rows(tile + l * count * D * 2, from, count, p.head_size, a.n.k + l * p.head_size, p.levels * p.head_size,
                [&](int32_t t) { return head.template key_row<const T>(p.k[l], t, l); });
    load_rows(tile + p.levels * count * D * 2, from, count, p.value_size, a.n.v, p.value_size,
              [&](int32_t t) { return head.template key_row<const T>(p.v, t); });
  }

  // What child x adds to the scores of others, in base 2; -inf hides it.
  __device__ float term(int x) const {
    if (x >= size) return -INFINITY;
    const float w = head.weight(children[x]);
    return w > 0 ? (head.kappa(children[x]) + __logf(w)) * kLog2e : -INFINITY;
  }
  __device__ int row(int half) const { return mine + tile_row(half); }
  // Products of all levels between the warp's rows and 16 of a chunk, in base 2.
  __device__ void products(float (&s)[2][4], int sub) const {
    each_of_tile([&](int, int n, int i, int) { s[n][i] = 0; });
    for (int level = 0; level < a.p.levels; ++level) {
      float x[2][4] = {};
      rows_by_rows<T, D>(x, own_rows(level), chunk_tile(level) + sub * D * 2);
      const float factor = head.level_weight(level) * static_cast<float>(a.p.scale) * kLog2e;
      each_of_tile([&](int, int n, int i, int) { s[n][i] += factor * x[n][i]; });
    }
  }

  // The chunks of the family: load(c0), then, for every warp, f(c0).
  template <class Load, class F>
  __device__ void each_chunk(const Load& load, const F& f) const {
    for (int c0 = 0; c0 < size; c0 += columns) {
      if (c0 > 0) __syncthreads();
      load(c0);
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      if (mine < size) f(c0);
    }
  }
  // Keys as chunks, with their terms: f(scores, first key, its row of the chunk) for every 16 of them. own_f: f in base
  // 2 of this lane's rows, for nodes. at_own(row of the chunk): where a chunk holds the warp's own children.
  template <class F, class AtOwn>
  __device__ void each_key_tile(const float (&own_f)[2], const F& f, const AtOwn& at_own) const {
    auto load = [&](int c0) {
      load_keys(chunk_tile(0), c0, columns);
      for (int x = static_cast<int>(threadIdx.x); x < columns; x += static_cast<int>(blockDim.x))
        numbers[x].x = term(c0 + x);
    };
    each_chunk(load, [&](int c0) {
      for (int sub = 0; sub < columns && c0 + sub < size; sub += kTileRows) {
        if (c0 + sub == mine) at_own(sub);
        if (a.p.causal && c0 + sub > mine) continue;
        float s[2][4];
        products(s, sub);
        each_of_tile([&](int, int n, int i, int y) { s[n][i] += numbers[sub + y].x; });
        if (a.p.positions != nullptr) add_positions(s, c0 + sub, false);
        if (c0 + sub == mine || mine + kTileRows > size) mask(s, c0 + sub, own_f);
        f(s, c0 + sub, sub);
      }
    });
  }
  // Position terms of the warp's rows and 16 children from `from` on; keys: the rows are keys.
  __device__ void add_positions(float (&s)[2][4], int from, bool keys) const {
    each_of_tile([&](int half, int n, int i, int y) {
      const int query = keys ? from + y : row(half), key = keys ? row(half) : from + y;
      if (query == key || query >= size || key >= size) return;
      const int64_t at = head.position(family, query, key);
      if (at >= 0) s[n][i] += static_cast<const float*>(a.p.positions)[at] * kLog2e;
    });
  }
  __device__ void mask(float (&s)[2][4], int from, const float (&own_f)[2]) const {
    each_of_tile([&](int half, int n, int i, int y) {
      const int key = from + y;
      if (row(half) >= size || (a.p.causal && key > row(half))) s[n][i] = -INFINITY;
      if (key == row(half) && own_f[half] != INFINITY && s[n][i] != -INFINITY) s[n][i] = own_f[half];
    });
  }
  // This lane's two children, and f in base 2 of those that are nodes; +inf of others.
  __device__ void own_children(int32_t (&child)[2], float (&own_f)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      child[half] = row(half) < size ? children[row(half)] : 0;
      own_f[half] = child[half] < 0 ? a.n.f[head.node(~child[half])] * kLog2e : INFINITY;
    }
  }

  __device__ float* parts(const WideParts& layout) const {
    return a.wide_parts + (int64_t{part} * a.p.heads + head.head) * layout.width;
  }
  __device__ float own_weight() const {  // of child `lane` of the warp
    const int x = mine + lane_of_thread();
    return lane_of_thread() < kTileRows && x < size ? head.weight(children[x]) : 0.0f;
  }
  // Sums over the warp's children of share * row of a tensor.
  __device__ void store_sum(float* to, uint32_t rows, int channels, float share) const {
    sum_tile_rows<T, D>(rows, left_lane_row(), share, [&](int channel, float2 x) {
      if (channel < channels) to[channel] = x.x, to[channel + 1] = x.y;
    });
  }
  // Z of the warp's children, and its part of the family's numbers. Queries are in the tile.
  __device__ void store_up(const WideParts& layout, const int32_t (&child)[2], const float (&Z)[2],
                           const float (&mu)[2], bool leaf_numbers) const {
    float* const to = parts(layout);
    float weighted = 0, all_mu = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane_of_thread() % 4 != 0 || row(half) >= size) continue;
      const float w = head.weight(child[half]);
      if (w > 0) weighted += w * Z[half];
      all_mu += mu[half];
      if (child[half] < 0) {
        a.n.Z[head.node(~child[half])] = Z[half];
        if (leaf_numbers) a.n.mu[head.node(~child[half])] = mu[half];
      } else if (leaf_numbers) {
        a.n.leaf_Z[head.leaf(child[half])] = Z[half];
        a.n.leaf_mu[head.leaf(child[half])] = mu[half];
      }
    }
    const float w = own_weight();
    const float total = warp_sum(w), kappa = warp_sum(w > 0 ? w * head.kappa(children[mine + lane_of_thread()]) : 0.0f);
    weighted = warp_sum(weighted), all_mu = warp_sum(all_mu);
    if (lane_of_thread() == 0) to[0] = total, to[1] = weighted, to[2] = kappa, to[3] = all_mu;
    for (int l = 0; l < a.p.levels; ++l) store_sum(to + layout.q + l * a.p.head_size, own_rows(l), a.p.head_size, w);
  }
  // The part of the keys and values, which a chunk holds from row `sub` on.
  __device__ void store_keys_up(const WideParts& layout, int sub) const {
    float* const to = parts(layout);
    const float w = own_weight();
    for (int l = 0; l < a.p.levels; ++l)
      store_sum(to + layout.k + l * a.p.head_size, chunk_tile(l) + sub * D * 2, a.p.head_size, w);
    store_sum(to + layout.v, chunk_tile(a.p.levels) + sub * D * 2, a.p.value_size, w);
  }
};

// The numbers of wide families from the parts of their warps, in order: a block per family and head.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    hsa_wide_sum_kernel(const __grid_constant__ HsaArgs<T> a, int64_t first_family, int64_t first_tile, bool backward) {
  const int64_t family = first_family + blockIdx.x, node = family * a.p.heads + blockIdx.y;
  const WideParts layout(a.p, backward);
  const int size = a.plan.child_begin[family + 1] - a.plan.child_begin[family];
  const int count = (size + kTileRows - 1) / kTileRows;  // warps that have children
  const int64_t stride = a.p.heads * layout.width;
  const float* const from =
      a.wide_parts +
      ((a.plan.first_tile[family] - first_tile) * (a.plan.tile_size / kTileRows) * a.p.heads + blockIdx.y) *
          layout.width;
  auto sum_of = [&](int c) {
    float sum = 0;
#pragma unroll 4
    for (int part = 0; part < count; ++part) sum += from[part * stride + c];
    return sum;
  };
  const float total = sum_of(0), inverse = total > 0 ? 1.0f / total : 0.0f;
  const int width = a.p.levels * a.p.head_size;
  for (int c = static_cast<int>(threadIdx.x); c < layout.width; c += static_cast<int>(blockDim.x)) {
    const float sum = sum_of(c);
    if (c >= layout.Y)
      a.n.Y[node * a.p.value_size + c - layout.Y] = sum;
    else if (c >= layout.v)
      a.n.v[node * a.p.value_size + c - layout.v] = sum * inverse;
    else if (c >= layout.k)
      a.n.k[node * width + c - layout.k] = sum * inverse;
    else if (c >= layout.q)
      a.n.q[node * width + c - layout.q] = sum * inverse;
    else if (c == 0)
      a.n.weight[node] = total;
    else if (c == 1)
      a.n.f[node] = total > 0 ? sum * inverse : -INFINITY;
    else if (c == 2)
      a.n.kappa[node] = sum * inverse;
    else if (backward)
      a.n.mbar[node] = sum;
  }
}

// A launch over the tiles of wide families of a depth, in `passes`; none where there are none.
struct WideLaunch {
  int64_t first_tile, tiles;
  unsigned threads;
  WideShape shape;
  WideLaunch(const HsaCall& call, int64_t depth)
      : first_tile(call.plan.tile_begin[depth]),
        tiles(call.plan.tile_begin[depth + 1] - first_tile),
        threads(32 * static_cast<unsigned>(tile_warps(call.plan))),
        shape(wide_shape(call.p, call.plan.tile_size)) {}
  template <class Kernel, class... Args>
  cudaError_t run(const HsaCall& call, Kernel kernel, int passes, const Args&... args) const {
    if (tiles == 0) return cudaSuccess;
    if (const cudaError_t e = allow_shared_memory(kernel, shape.memory); e != cudaSuccess) return e;
    const dim3 blocks(blocks_for(tiles * call.p.heads, 1), passes);
    kernel<<<blocks, threads, shape.memory, call.stream>>>(args..., first_tile, shape);
    return cudaGetLastError();
  }
};
template <class T>
cudaError_t sum_wide_families(const HsaCall& call, const HsaArgs<T>& a, int64_t depth, bool backward) {
  const int64_t first = call.plan.wide_begin[depth], count = call.plan.depth_begin[depth + 1] - first;
  if (count == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>(count), static_cast<unsigned>(call.p.heads));
  hsa_wide_sum_kernel<T><<<blocks, kMostThreads, 0, call.stream>>>(a, first, call.plan.tile_begin[depth], backward);
  return cudaGetLastError();
}

}  // namespace
}  // namespace strata::cuda
