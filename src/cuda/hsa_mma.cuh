// Families of at most 16 children on tensor cores: a family and head is one 16 x 16 attention, done by one warp. Trees
// of such families cost little more than reading q, k, v and writing the output. Means of nodes are rounded to the
// storage type when they are operands. A coarse row that several leaves share is loaded once and read for each of them.
#pragma once

#include "cuda/divide.h"
#include "cuda/hsa_nodes.cuh"
#include "cuda/tile16.cuh"

namespace strata::cuda {

constexpr int kFamilyWarps = 4;
constexpr int kFamilyScratch = 1024;  // bytes of a warp, to transpose in
static_assert(kTileRows == kNarrowFamily);

// Shared memory of a warp: the rows of q and k of every level, of v and, backward, of Y.
inline int family_memory(const HsaProblem& p, bool backward) {
  const int tile = kTileRows * (has_small_heads(p) ? 64 : 128) * 2;
  return (2 * p.levels + (backward ? 2 : 1)) * tile + (backward ? kFamilyScratch : 0);
}

// A launch over the narrow families of a depth, a warp per family and head.
struct FamilyLaunch {
  int64_t first, families;
  unsigned blocks, threads;
  int memory;
  FamilyLaunch(const HsaCall& call, int64_t depth, bool backward) {
    const int warps = hsa_mma_warps(call.p);
    first = call.plan.depth_begin[depth];
    families = call.plan.wide_begin[depth] - first;
    blocks = blocks_for(families * call.p.heads, warps);
    threads = 32 * warps;
    memory = warps * family_memory(call.p, backward);
  }
};

// Which family and head this warp has: none for warps beyond the last.
struct FamilyItem {
  int64_t family, head;
  bool exists;
  __device__ FamilyItem(int64_t first, int64_t families, int64_t heads) {
    const int64_t item = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp_of_thread();
    exists = item < families * heads;
    const Quotient at(item, heads);
    family = first + at.value;
    head = at.rest;
  }
};

// One family and head of a warp: its children's rows in shared memory, their numbers in the lanes (lane x: child x).
// kOneLevel: the compiler knows that there is one.
template <class T, int D, bool kOneLevel>
struct FamilyTile {
  static constexpr int kTile = kTileRows * D * 2;  // bytes of a tensor
  const HsaArgs<T>& a;
  Head<T> head;
  int64_t family, node;
  int lane, size;
  int32_t child, first_leaf;
  bool leaves;  // all children are leaves, and so neighbours
  uint32_t tiles;
  uint64_t policy;            // of the second cache, for leaves
  float weight, column, own;  // |x|, what x adds to the scores of others, f(x) of a node
  float total;                // |A|

  // dout: null data for a forward.
  __device__ FamilyTile(const HsaArgs<T>& args, const ConstView& dout, int64_t f, int64_t h, uint32_t memory)
      : a(args),
        head(args, f, h),
        family(f),
        node(head.node(f)),
        lane(static_cast<int>(threadIdx.x) % 32),
        tiles(memory),
        policy(dout.data == nullptr && args.p.key_heads == args.p.heads ? evict_first_policy()
                                                                        : evict_normal_policy()) {
    const int32_t begin = a.plan.child_begin[f];
    size = a.plan.child_begin[f + 1] - begin;
    child = lane < size ? a.plan.children[begin + lane] : 0;
    weight = lane < size ? head.weight(child) : 0.0f;
    leaves = __all_sync(~0u, lane >= size || child >= 0);
    first_leaf = __shfl_sync(~0u, child, 0);
    const HsaProblem& p = a.p;
    for (int level = 0; level < levels(); ++level) {
      load(q_tile(level), level, p.head_size, p.q[level], a.n.q + level * p.head_size, levels() * p.head_size,
           [&](int32_t t) { return head.template query_row<const T>(p.q[level], t, level); });
      load(k_tile(level), level, p.head_size, p.k[level], a.n.k + level * p.head_size, levels() * p.head_size,
           [&](int32_t t) { return head.template key_row<const T>(p.k[level], t, level); });
    }
    load(v_tile(), 0, p.value_size, p.v, a.n.v, p.value_size,
         [&](int32_t t) { return head.template key_row<const T>(p.v, t); });
    if (dout.data != nullptr)
      load(Y_tile(), 0, p.value_size, dout, a.n.Y, p.value_size,
           [&](int32_t t) { return head.template query_row<const T>(dout, t); });
    cp_async_commit();
    column = weight > 0 ? head.kappa(child) + __logf(weight) : -INFINITY;
    own = lane < size && child < 0 ? a.n.f[head.node(~child)] : 0.0f;
    total = warp_sum(weight);
    cp_async_wait<0>();
    __syncwarp();
  }

  __device__ int levels() const { return kOneLevel ? 1 : a.p.levels; }
  __device__ uint32_t q_tile(int level) const { return tiles + 2 * level * kTile; }
  __device__ uint32_t k_tile(int level) const { return tiles + (2 * level + 1) * kTile; }
  __device__ uint32_t v_tile() const { return q_tile(levels()); }
  __device__ uint32_t Y_tile() const { return k_tile(levels()); }
  // The row of a level's tiles that child x has.
  __device__ int slot(int level, int x) const {
    return leaves && !kOneLevel ? ((first_leaf + x) >> level) - (first_leaf >> level) : x;
  }

  // The children that share a row of a level, as bits; all of them are leaves.
  __device__ unsigned children_of_row(int level, int row) const {
    const int from = max(0, (row << level) - first_leaf), to = min(kTileRows, ((row + 1) << level) - first_leaf);
    return from < to ? (1u << to) - (1u << from) : 0u;
  }
  // Rows that do not count are zeros, whatever they hold. row(t): that of leaf t; means: (node, `width` channels).
  template <class Row>
  __device__ void load(uint32_t tile, int level, int channels, const ConstView& view, const float* means, int width,
                       const Row& row) const {
    const unsigned real = __ballot_sync(~0u, weight > 0);
    constexpr int kStep = 32 / (D / 8);  // rows side by side
    const int r0 = lane / (D / 8), chunk = lane % (D / 8);
    if (leaves) {
      const T* rows = row(first_leaf) + r0 * view.stride[2] + chunk * 8;
      const int first = first_leaf >> level, count = slot(level, kTileRows - 1) + 1;
#pragma unroll 4
      for (int r = r0; r < count; r += kStep, rows += kStep * view.stride[2]) {
        const bool there =
            (kOneLevel ? real >> r & 1 : real & children_of_row(level, first + r)) != 0 && chunk * 8 < channels;
        cp_async(tile + tile_offset<D>(r, chunk), there ? rows : view.data, there ? 16 : 0, policy);
      }
      return;
    }
#pragma unroll
    for (int r = r0; r < kTileRows; r += kStep) {
      const int32_t x = __shfl_sync(~0u, child, r);
      const bool there = (real >> r & 1) != 0 && chunk * 8 < channels;
      const uint32_t to = tile + tile_offset<D>(r, chunk);
      if (x >= 0) {
        cp_async(to, there ? row(x) + chunk * 8 : view.data, there ? 16 : 0);
        continue;
      }
      uint32_t packed[4] = {0, 0, 0, 0};
      if (there) {
        const float4* from = reinterpret_cast<const float4*>(means + head.node(~x) * width + chunk * 8);
        const float4 low = from[0], high = from[1];
        packed[0] = pack(low.x, low.y, T());
        packed[1] = pack(low.z, low.w, T());
        packed[2] = pack(high.x, high.y, T());
        packed[3] = pack(high.z, high.w, T());
      }
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(packed[0]), "r"(packed[1]), "r"(packed[2]),
                   "r"(packed[3]));
    }
  }

  // Rows and columns of what this lane holds of a 16 x 16 matrix (tile16.cuh).
  __device__ int row(int half) const { return tile_row(half); }
  __device__ int place(int n, int e) const { return 8 * n + 2 * (lane % 4) + e; }
  template <class F>
  __device__ void each(const F& f) const {
    each_of_tile(f);
  }
  // The products of the children's q and k of one level.
  __device__ void products(float (&x)[2][4], int level) const {
    rows_by_rows<T, D>(x, q_tile(level), slot(level, left_lane_row()), k_tile(level), slot(level, right_lane_row()));
  }

  // 16 leaves without any terms: their scores are their products.
  __device__ bool is_plain() const {
    return leaves && size == kTileRows && a.p.weights.data == nullptr && a.p.key_bias.data == nullptr &&
           a.p.positions == nullptr && !a.p.causal;
  }
  // P: exp(g(c, b) - Z_c), and exp(f(c) - Z_c) on the diagonal; Z of this lane's two rows.
  __device__ void attention(float (&P)[2][4], float (&Z)[2]) const {
    const float scale = static_cast<float>(a.p.scale);
    for (int level = 0; level < levels(); ++level) {
      float x[2][4] = {};
      products(x, level);
      const float factor = scale * head.level_weight(level);
      each([&](int, int n, int i, int) { P[n][i] += factor * x[n][i]; });
    }
    if (!is_plain()) {
      each([&](int half, int n, int i, int y) {
        const int x = row(half);
        float& s = P[n][i];
        const float add = __shfl_sync(~0u, column, y), f = __shfl_sync(~0u, own, y);
        const bool is_node = __shfl_sync(~0u, child, y) < 0;
        const int64_t at = y != x && x < size && y < size ? head.position(family, x, y) : -1;
        const float E = at < 0 ? 0.0f : static_cast<const float*>(a.p.positions)[at];
        s = add == -INFINITY || x >= size || (a.p.causal && y > x) ? -INFINITY : x == y && is_node ? f : s + add + E;
      });
    }
    TileSoftmax<> softmax;
    float rescale[2];  // there is one tile alone
    softmax.add(P, rescale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      softmax.sum[half] = quad_sum(softmax.sum[half]);
      Z[half] = softmax.max[half] + __logf(softmax.sum[half]);
    }
    each([&](int half, int n, int i, int) { P[n][i] *= softmax.sum[half] == 0 ? 0.0f : 1.0f / softmax.sum[half]; });
  }

  // The family's own numbers: means of its children, f from their Z, its weight.
  __device__ void store_node(const float (&Z)[2]) const {
    const float inverse = total > 0 ? 1.0f / total : 0.0f;
    float f = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float w = __shfl_sync(~0u, weight, row(half));
      const int32_t x = __shfl_sync(~0u, child, row(half));
      if (lane % 4 != 0 || row(half) >= size) continue;
      if (w > 0) f += w * inverse * Z[half];
      if (x < 0) a.n.Z[head.node(~x)] = Z[half];
    }
    f = warp_sum(f);
    const float kappa = warp_sum(weight > 0 ? weight * head.kappa(child) : 0.0f);
    if (lane == 0) {
      a.n.f[node] = total > 0 ? f : -INFINITY;
      a.n.weight[node] = total;
      a.n.kappa[node] = kappa * inverse;
    }
    for (int level = 0; level < levels(); ++level) {
      const int64_t to = head.level_row(node, level);
      sum_rows(q_tile(level), level, a.n.q + to, a.p.head_size, weight, inverse);
      sum_rows(k_tile(level), level, a.n.k + to, a.p.head_size, weight, inverse);
    }
    sum_rows(v_tile(), 0, a.n.v + node * a.p.value_size, a.p.value_size, weight, inverse);
  }
  // to = factor * sum over children x of share(x) row(x)
  __device__ void sum_rows(uint32_t tile, int level, float* to, int channels, float share, float factor) const {
    sum_tile_rows<T, D>(tile, slot(level, left_lane_row()), share, [&](int channel, float2 x) {
      if (channel < channels) *reinterpret_cast<float2*>(to + channel) = make_float2(x.x * factor, x.y * factor);
    });
  }

  // Rows of the leaves from a tile to their places in `view`, 16 bytes at a time.
  __device__ void store_leaves(const View& view, uint32_t tile, int channels) const {
    const int chunk = lane % (D / 8);
    if (chunk * 8 >= channels) return;
    T* const rows = head.template query_row<T>(view, first_leaf) + chunk * 8;
#pragma unroll
    for (int r = lane / (D / 8); r < kTileRows; r += 32 / (D / 8)) {
      if (r < size) *reinterpret_cast<uint4*>(rows + r * view.stride[2]) = load_shared(tile + tile_offset<D>(r, chunk));
    }
  }

  // left x children's rows of a tensor: f(half, channel, two neighbouring numbers).
  template <class F>
  __device__ void spread(const uint32_t (&left)[4], uint32_t tile, int level, int channels, const F& f) const {
    const int from = slot(level, left_lane_row());
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      float x[2][4] = {};
      by_rows<T, D>(x[0], x[1], left, tile, from, n);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int channel = (n + m) * 8 + 2 * (lane % 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (row(half) < size && channel < channels) f(half, channel, make_float2(x[m][2 * half], x[m][2 * half + 1]));
        }
      }
    }
  }
};

}  // namespace strata::cuda
