// HSA backward, the wide families of a depth, with mma.sync (hsa_wide_mma.cuh; the formulas are in
// hsa_backward_mma.cu). Bottom-up, Z and mu of every child; top-down, one kernel owns queries and one owns keys.
#include "cuda/hsa_wide_kernels.h"
#include "cuda/hsa_wide_mma.cuh"

namespace strata::cuda {
namespace {

template <class T, int D>
__global__ void __launch_bounds__(kMostThreads, D == 64 ? 4 : 2)
    hsa_wide_mass_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ ConstView dout,
                         int64_t first_tile, WideShape shape) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const WideTile<T, D> tile(a, blockIdx.x, first_tile, shape, memory);
  const WideParts layout(a.p, true);
  int32_t child[2];
  float own_f[2], mu[2] = {}, Z[2];
  tile.own_children(child, own_f);
  tile.load_queries(tile.own_tile(0), tile.first, tile.rows, dout);
  TileSoftmax<true> softmax;
  auto add = [&](float(&s)[2][4], int from, int sub) {
    float rescale[2], R[2][4] = {};
    softmax.add(s, rescale);
    rows_by_rows<T, D>(R, tile.own_rows(a.p.levels), tile.chunk_tile(a.p.levels) + sub * D * 2);
    each_of_tile([&](int half, int n, int i, int y) {
      if (from == tile.mine && y == tile_row(half) && child[half] < 0) R[n][i] = a.n.mbar[tile.head.node(~child[half])];
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mu[half] *= rescale[half];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) mu[half] += s[n][i] == 0 ? 0.0f : s[n][i] * R[n][i];
      }
    }
  };
  tile.each_key_tile(own_f, add, [&](int sub) { tile.store_keys_up(layout, sub); });
  if (tile.mine >= tile.size) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(softmax.sum[half]);
    Z[half] = (softmax.max[half] + __log2f(total)) * kLn2;
    const bool real = total > 0 && tile.row(half) < tile.size && tile.head.weight(child[half]) > 0;
    mu[half] = quad_sum(mu[half]);
    mu[half] = real ? mu[half] / total : 0.0f;
  }
  tile.store_up(layout, child, Z, mu, true);
  // Rows that do not count are zeros.
  tile.store_sum(tile.parts(layout) + layout.Y, tile.own_rows(a.p.levels), a.p.value_size, 1.0f);
}

// What the gradients of a family begin with.
template <class T>
struct FamilyGradient {
  float m, fbar, total;
  __device__ FamilyGradient(const WideGradientArgs<T>& args, const Head<T>& head, int64_t node)
      : m(args.root ? 1.0f : args.a.n.m[node]),
        fbar(!args.root ? args.a.n.fbar[node]
             : args.g.dscore == nullptr
                 ? 0.0f
                 : static_cast<const float*>(args.g.dscore)[head.sequence * args.a.p.heads + head.head]),
        total(args.a.n.weight[node]) {}
};

// Z in base 2, mu and |c| / |A| of a child; those that do not count have Z = +inf, so that they have no weights.
template <class T, int D>
__device__ float4 query_numbers(const WideTile<T, D>& tile, int x, float total) {
  if (x >= tile.size) return make_float4(INFINITY, 0, 0, 0);
  const int32_t child = tile.children[x];
  const float w = tile.head.weight(child), Z = tile.head.Z(child);
  if (!(w > 0) || Z == -INFINITY) return make_float4(INFINITY, 0, 0, 0);
  const NodeNumbers<float>& n = tile.a.n;
  const float mu = child < 0 ? n.mu[tile.head.node(~child)] : n.leaf_mu[tile.head.leaf(child)];
  return make_float4(Z * kLog2e, mu, w / total, 0);
}

// Where the gradient of a child's row goes: a node's, a leaf's, or a leaf's that is summed later.
template <class T>
struct GradientRow {
  T* leaf;
  float* sums;
  __device__ void store(int channel, float2 x) const {
    if (leaf != nullptr) {
      *reinterpret_cast<uint32_t*>(leaf + channel) = pack(x.x, x.y, T());
    } else {
      *reinterpret_cast<float2*>(sums + channel) = x;
    }
  }
};
template <class T, class LeafRow>
__device__ GradientRow<T> gradient_row(const Head<T>& head, int32_t child, float* nodes, float* later, int channels,
                                       const LeafRow& leaf_row) {
  if (child < 0) return {nullptr, nodes};
  return later != nullptr ? GradientRow<T>{nullptr, later + head.leaf(child) * channels}
                          : GradientRow<T>{leaf_row(), nullptr};
}

// The warp's part of the gradient of a level's weight. Parts of narrow families come first, by family; a wide family
// has none there.
template <class T, int D>
__device__ void store_level_part(const WideGradientArgs<T>& args, const WideTile<T, D>& tile, int level, float part) {
  const LeafGradients<float>& later = args.a.later;
  if (later.level_parts == nullptr || lane_of_thread() != 0) return;
  auto place = [&](int64_t at) -> float& {
    return later.level_parts[(at * args.a.p.heads + tile.head.head) * args.a.p.levels + level];
  };
  place(args.families + args.first_tile * (tile.rows / kTileRows) + tile.part) = part;
  if (tile.mine == 0) place(tile.family) = 0;
}

// Writes dq of a level, and the warp's part of the gradient of its weight.
template <class T, int D>
__device__ void store_queries(const WideGradientArgs<T>& args, const WideTile<T, D>& tile, const int32_t (&child)[2],
                              const float4 (&mine)[2], int level, const float (&sum)[D / 8][4]) {
  const HsaArgs<T>& a = args.a;
  const HsaProblem& p = a.p;
  const Head<T>& head = tile.head;
  const float scale = static_cast<float>(p.scale), factor = scale * head.level_weight(level);
  const float* const above = args.root ? nullptr : a.n.dq + head.level_row(tile.node, level);
  float part = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.row(half) >= tile.size) continue;
    const GradientRow<T> to = gradient_row(
        head, child[half], child[half] < 0 ? a.n.dq + head.level_row(head.node(~child[half]), level) : nullptr,
        a.later.dq[level], p.head_size,
        [&] { return head.template query_row<T>(args.g.dq[level], child[half], level); });
    const uint32_t row = tile.own_rows(level);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int channel = 8 * n + 2 * (lane_of_thread() % 4);
      if (channel >= p.head_size) continue;
      float2 x = make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
      uint32_t pair;
      asm volatile("ld.shared.b32 %0, [%1];"
                   : "=r"(pair)
                   : "r"(row + tile_offset<D>(tile_row(half), n) + 4 * (lane_of_thread() % 4)));
      const float2 q = unpack(pair, T());
      part += x.x * q.x + x.y * q.y;
      x.x *= factor, x.y *= factor;
      if (above != nullptr) x.x += mine[half].z * above[channel], x.y += mine[half].z * above[channel + 1];
      to.store(channel, x);
    }
  }
  store_level_part(args, tile, level, warp_sum(part) * scale);
}

// dq of two levels, 2 blockIdx.y and the one above; with the first, what nodes take down.
template <class T, int D>
__global__ void __launch_bounds__(kMostThreads, D == 64 ? 3 : 2)
    hsa_wide_query_kernel(const __grid_constant__ WideGradientArgs<T> args, int64_t first_tile, WideShape shape) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const HsaArgs<T>& a = args.a;
  const WideTile<T, D> tile(a, blockIdx.x, first_tile, shape, memory);
  const Head<T>& head = tile.head;
  const FamilyGradient<T> family(args, head, tile.node);
  const int level = 2 * static_cast<int>(blockIdx.y), count = min(2, a.p.levels - level);
  int32_t child[2];
  float own_f[2], sum[2][D / 8][4] = {};
  float4 mine[2];
  tile.own_children(child, own_f);
  tile.load_queries(tile.own_tile(0), tile.first, tile.rows, args.g.dout);
  for (int half = 0; half < 2; ++half) mine[half] = query_numbers(tile, tile.row(half), family.total);
  auto add = [&](float(&s)[2][4], int from, int sub) {
    float G[2][4] = {};
    rows_by_rows<T, D>(G, tile.own_rows(a.p.levels), tile.chunk_tile(a.p.levels) + sub * D * 2);
    each_of_tile([&](int half, int n, int i, int y) {
      const bool own_node = from == tile.mine && y == tile_row(half) && child[half] < 0;
      const float R = own_node ? a.n.mbar[head.node(~child[half])] : G[n][i], P = fast_exp2(s[n][i] - mine[half].x);
      G[n][i] = P == 0 ? 0.0f : P * (family.m * (R - mine[half].y) + family.fbar * mine[half].z);
      if (own_node && level == 0) {
        a.n.m[head.node(~child[half])] = family.m * P;
        a.n.fbar[head.node(~child[half])] = G[n][i];
      }
      if (own_node) G[n][i] = 0;
    });
    if (args.positions != nullptr && level == 0) {
      each_of_tile([&](int half, int n, int i, int y) {
        if (G[n][i] == 0 || from + y == tile.row(half)) return;
        const int64_t at = head.position(tile.family, tile.row(half), from + y);
        if (at >= 0) add_fixed_point(args.positions + at, G[n][i]);
      });
    }
    uint32_t left[4];
    tile_operand<T>(left, G);
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      if (x >= count) break;
      const uint32_t keys = tile.chunk_tile(level + x) + sub * D * 2;
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) by_rows<T, D>(sum[x][n], sum[x][n + 1], left, keys, n);
    }
  };
  tile.each_key_tile(own_f, add, [](int) {});
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    if (x >= count) break;
    if (tile.mine < tile.size) {
      store_queries(args, tile, child, mine, level + x, sum[x]);
    } else {
      store_level_part(args, tile, level + x, 0.0f);
    }
  }
}

// What the weight of child x gets through the family's f and means (BackwardFamily::weight_from_means), by a warp.
template <class T, int D>
__device__ float weight_from_means(const WideGradientArgs<T>& args, const WideTile<T, D>& tile,
                                   const FamilyGradient<T>& family, int32_t child) {
  const HsaArgs<T>& a = args.a;
  const Head<T>& head = tile.head;
  const NodeNumbers<float>& n = a.n;
  float sum = 0;
  if (!args.root) {
    for (int c = lane_of_thread(); c < a.p.levels * a.p.head_size; c += 32) {
      const int64_t at = tile.node * a.p.levels * a.p.head_size + c;
      const int level = c / a.p.head_size, channel = c % a.p.head_size;
      sum +=
          n.dq[at] * (head.q(child, level, channel) - n.q[at]) + n.dk[at] * (head.k(child, level, channel) - n.k[at]);
    }
    for (int c = lane_of_thread(); c < a.p.value_size; c += 32) {
      const int64_t at = tile.node * a.p.value_size + c;
      sum += n.dv[at] * (head.v(child, c) - n.v[at]);
    }
  }
  sum = warp_sum(sum) + family.fbar * (head.Z(child) - n.f[tile.node]);
  if (!args.root) sum += n.dkappa[tile.node] * (head.kappa(child) - n.kappa[tile.node]);
  return sum / family.total + (args.root ? 0.0f : n.dweight[tile.node]);
}

// dkappa and dweight of the warp's children. column: sums of G over the queries, of this lane's two rows.
template <class T, int D>
__device__ void store_scalars(const WideGradientArgs<T>& args, const WideTile<T, D>& tile,
                              const FamilyGradient<T>& family, const float (&column)[2]) {
  const HsaArgs<T>& a = args.a;
  const Head<T>& head = tile.head;
  const bool weights = args.g.dweights.data != nullptr;
  for (int r = 0; r < kTileRows && tile.mine + r < tile.size; ++r) {
    const int32_t c = tile.children[tile.mine + r];
    const float w = head.weight(c), sum = __shfl_sync(~0u, r < 8 ? column[0] : column[1], r % 8 * 4);
    const float means = weights && w > 0 ? weight_from_means(args, tile, family, c) : 0.0f;
    if (lane_of_thread() != 0) continue;
    const float dweight = w > 0 ? sum / w + means : 0.0f;
    const float dkappa = w > 0 ? sum + (args.root ? 0.0f : w / family.total * a.n.dkappa[tile.node]) : 0.0f;
    if (c < 0) {
      if (weights) a.n.dweight[head.node(~c)] = dweight;
      a.n.dkappa[head.node(~c)] = dkappa;
    } else if (a.later.dkappa != nullptr) {
      a.later.dweight[head.leaf(c)] = dweight;
      a.later.dkappa[head.leaf(c)] = dkappa;
    } else {
      if (weights) *head.template key_row<float>(args.g.dweights, c) = dweight;
      if (args.g.dkey_bias.data != nullptr) *head.template key_row<float>(args.g.dkey_bias, c) = dkappa;
    }
  }
}

// dv, or dk of a level: tensor 0, or level + 1.
template <class T, int D>
__device__ void store_keys(const WideGradientArgs<T>& args, const WideTile<T, D>& tile, const FamilyGradient<T>& family,
                           int tensor, const float (&sum)[D / 8][4]) {
  const HsaArgs<T>& a = args.a;
  const HsaProblem& p = a.p;
  const Head<T>& head = tile.head;
  const bool values = tensor == 0;
  const int level = values ? 0 : tensor - 1, channels = values ? p.value_size : p.head_size;
  auto of_node = [&](int64_t node) {
    return values ? a.n.dv + node * p.value_size : a.n.dk + head.level_row(node, level);
  };
  const float* const above = args.root ? nullptr : of_node(tile.node);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.row(half) >= tile.size) continue;
    const int32_t child = tile.children[tile.row(half)];
    const float w = head.weight(child), share = w > 0 ? w / family.total : 0.0f;
    const GradientRow<T> to = gradient_row(
        head, child, child < 0 ? of_node(head.node(~child)) : nullptr, values ? a.later.dv : a.later.dk[level],
        channels, [&] { return head.template key_row<T>(values ? args.g.dv : args.g.dk[level], child, level); });
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int channel = 8 * n + 2 * (lane_of_thread() % 4);
      if (channel >= channels) continue;
      float2 x = make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
      if (above != nullptr) x.x += share * above[channel], x.y += share * above[channel + 1];
      to.store(channel, x);
    }
  }
}

// Gradients of two tensors, 2 blockIdx.y and the one after it: tensor 0 is the values, tensor l + 1 the keys of level
// l.
template <class T, int D>
__global__ void __launch_bounds__(kMostThreads, D == 64 ? 3 : 2)
    hsa_wide_key_kernel(const __grid_constant__ WideGradientArgs<T> args, int64_t first_tile, WideShape shape) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const HsaArgs<T>& a = args.a;
  const WideTile<T, D> tile(a, blockIdx.x, first_tile, shape, memory);
  const FamilyGradient<T> family(args, tile.head, tile.node);
  const int tensor = 2 * static_cast<int>(blockIdx.y), count = min(2, a.p.levels + 1 - tensor);
  int32_t child[2];
  float own_f[2], term[2], column[2] = {}, sum[2][D / 8][4] = {};
  tile.own_children(child, own_f);
  tile.load_keys(tile.own_tile(0), tile.first, tile.rows);
  for (int half = 0; half < 2; ++half) term[half] = tile.term(tile.row(half));
  auto load = [&](int c0) {
    tile.load_queries(tile.chunk_tile(0), c0, tile.columns, args.g.dout);
    for (int x = static_cast<int>(threadIdx.x); x < tile.columns; x += static_cast<int>(blockDim.x))
      tile.numbers[x] = query_numbers(tile, c0 + x, family.total);
  };
  auto add = [&](int from, int sub) {
    float P[2][4], G[2][4] = {};
    tile.products(P, sub);
    if (a.p.positions != nullptr) tile.add_positions(P, from, true);
    rows_by_rows<T, D>(G, tile.own_rows(a.p.levels), tile.chunk_tile(a.p.levels) + sub * D * 2);
    each_of_tile([&](int half, int n, int i, int y) {
      const float4 query = tile.numbers[sub + y];
      const int x = from + y, key = tile.row(half);
      P[n][i] = fast_exp2(P[n][i] + term[half] - query.x);
      if ((a.p.causal && key > x) || (key == x && child[half] < 0)) P[n][i] = 0;  // a node's own mass goes down
      G[n][i] = P[n][i] == 0 ? 0.0f : P[n][i] * (family.m * (G[n][i] - query.y) + family.fbar * query.z);
      P[n][i] *= family.m;
      column[half] += G[n][i];
    });
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      if (x >= count) break;
      const int level = tensor + x - 1;
      const float factor = level < 0 ? 1.0f : static_cast<float>(a.p.scale) * tile.head.level_weight(level);
      float rows[2][4];
      each_of_tile([&](int, int n, int i, int) { rows[n][i] = level < 0 ? P[n][i] : factor * G[n][i]; });
      uint32_t left[4];
      tile_operand<T>(left, rows);
      const uint32_t queries = tile.chunk_tile(level < 0 ? a.p.levels : level) + sub * D * 2;
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) by_rows<T, D>(sum[x][n], sum[x][n + 1], left, queries, n);
    }
  };
  tile.each_chunk(load, [&](int c0) {
    for (int sub = 0; sub < tile.columns && c0 + sub < tile.size; sub += kTileRows) {
      if (!a.p.causal || c0 + sub >= tile.mine) add(c0 + sub, sub);
    }
  });
  if (tile.mine >= tile.size) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) column[half] = quad_sum(column[half]);
  if (tensor == 0) store_scalars(args, tile, family, column);
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    if (x < count) store_keys(args, tile, family, tensor + x, sum[x]);
  }
}

template <class T, int D>
cudaError_t up(const HsaCall& call, const HsaArgs<T>& a, const ConstView& dout, int64_t depth) {
  const cudaError_t e = WideLaunch(call, depth).run(call, hsa_wide_mass_kernel<T, D>, 1, a, dout);
  return e != cudaSuccess ? e : sum_wide_families(call, a, depth, true);
}
template <class T, int D>
cudaError_t down(const HsaCall& call, WideGradientArgs<T> args, int64_t depth) {
  const WideLaunch launch(call, depth);
  args.families = call.plan.families, args.first_tile = launch.first_tile;
  const cudaError_t e = launch.run(call, hsa_wide_query_kernel<T, D>, (call.p.levels + 1) / 2, args);
  return e != cudaSuccess ? e : launch.run(call, hsa_wide_key_kernel<T, D>, (call.p.levels + 2) / 2, args);
}
}  // namespace

template <class T>
cudaError_t hsa_wide_mass(const HsaCall& call, const HsaArgs<T>& a, const ConstView& dout, int64_t depth) {
  return has_small_heads(call.p) ? up<T, 64>(call, a, dout, depth) : up<T, 128>(call, a, dout, depth);
}
template <class T>
cudaError_t hsa_wide_gradient(const HsaCall& call, const WideGradientArgs<T>& args, int64_t depth) {
  return has_small_heads(call.p) ? down<T, 64>(call, args, depth) : down<T, 128>(call, args, depth);
}
template cudaError_t hsa_wide_mass(const HsaCall&, const HsaArgs<__nv_bfloat16>&, const ConstView&, int64_t);
template cudaError_t hsa_wide_mass(const HsaCall&, const HsaArgs<__half>&, const ConstView&, int64_t);
template cudaError_t hsa_wide_gradient(const HsaCall&, const WideGradientArgs<__nv_bfloat16>&, int64_t);
template cudaError_t hsa_wide_gradient(const HsaCall&, const WideGradientArgs<__half>&, int64_t);

}  // namespace strata::cuda
