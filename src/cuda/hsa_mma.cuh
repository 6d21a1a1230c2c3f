// Families of at most 16 children on tensor cores: a family and head is one 16 x 16 attention, done by one warp. Trees
// of such families cost little more than reading q, k, v and writing the output. Means of nodes are rounded to the
// storage type when they are operands.
#pragma once

#include "cuda/hsa_nodes.cuh"
#include "cuda/tile16.cuh"

namespace strata::cuda {

constexpr int kFamilyWarps = 4;
constexpr int kFamilyScratch = 1024;  // bytes of a warp, to transpose in
static_assert(kTileRows == kMmaFamilySize);
enum FamilyTensor { kQ, kK, kV, kY };

inline bool has_small_heads(const HsaProblem& p) { return p.head_size <= 64 && p.value_size <= 64; }
inline unsigned family_blocks(const HsaCall& call, int64_t depth) {
  return blocks_for(families_at(call.plan, depth) * call.p.heads, kFamilyWarps);
}

// One family and head of a warp: its children's rows in shared memory, their numbers in the lanes (lane x: child x).
template <class T, int D, int kTensors>
struct FamilyTile {
  static constexpr int kTile = kTileRows * D * 2, kMemory = kTensors * kTile;  // bytes of a tensor, of all
  const HsaArgs<T>& a;
  Head<T> head;
  int64_t family, node;
  int lane, size;
  int32_t child;
  uint32_t tiles;
  float weight, column, own;  // |x|, what x adds to the scores of others, f(x) of a node
  float total;                // |A|

  __device__ FamilyTile(const HsaArgs<T>& args, const ConstView& dout, int64_t f, int64_t h, uint32_t memory)
      : a(args),
        head(args, f, h),
        family(f),
        node(head.node(f)),
        lane(static_cast<int>(threadIdx.x) % 32),
        tiles(memory) {
    const int32_t begin = a.plan.child_begin[f];
    size = a.plan.child_begin[f + 1] - begin;
    child = lane < size ? a.plan.children[begin + lane] : 0;
    weight = lane < size ? head.weight(child) : 0.0f;
    const HsaProblem& p = a.p;
    load(kQ, p.q[0], a.n.q, p.head_size);
    load(kK, p.k[0], a.n.k, p.head_size);
    load(kV, p.v, a.n.v, p.value_size);
    if constexpr (kTensors > kY) load(kY, dout, a.n.Y, p.value_size);
    cp_async_commit();
    column = weight > 0 ? head.kappa(child) + __logf(weight) : -INFINITY;
    own = lane < size && child < 0 ? a.n.f[head.node(~child)] : 0.0f;
    total = warp_sum(weight);
    cp_async_wait<0>();
    __syncwarp();
  }

  // Rows that do not count are zeros, whatever they hold.
  __device__ void load(int which, const ConstView& view, const float* means, int channels) const {
    const unsigned real = __ballot_sync(~0u, weight > 0);
    if (__all_sync(~0u, lane >= size || child >= 0)) {  // leaves of a family are neighbours
      constexpr int kStep = 32 / (D / 8);               // rows side by side
      const int r0 = lane / (D / 8), chunk = lane % (D / 8);
      const T* rows = head.template row<const T>(view, __shfl_sync(~0u, child, 0)) + r0 * view.stride[2] + chunk * 8;
#pragma unroll
      for (int i = 0; i < kTileRows / kStep; ++i) {
        const int r = r0 + i * kStep;
        const bool there = (real >> r & 1) != 0 && chunk * 8 < channels;
        cp_async(tile(which) + tile_offset<D>(r, chunk), there ? rows + i * kStep * view.stride[2] : view.data,
                 there ? 16 : 0);
      }
      return;
    }
#pragma unroll
    for (int at = lane; at < kTileRows * D / 8; at += 32) {
      const int r = at / (D / 8), chunk = at % (D / 8);
      const int32_t x = __shfl_sync(~0u, child, r);
      const bool there = __shfl_sync(~0u, weight, r) > 0 && chunk * 8 < channels;
      const uint32_t to = tile(which) + tile_offset<D>(r, chunk);
      if (x >= 0) {
        const T* row = head.template row<const T>(view, there ? x : 0) + chunk * 8;
        cp_async(to, there ? row : view.data, there ? 16 : 0);
        continue;
      }
      uint32_t packed[4] = {0, 0, 0, 0};
      if (there) {
        const float4* from = reinterpret_cast<const float4*>(means + head.node(~x) * channels + chunk * 8);
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

  __device__ uint32_t tile(int which) const { return tiles + which * kTile; }
  // Rows and columns of what this lane holds of a 16 x 16 matrix (tile16.cuh).
  __device__ int row(int half) const { return tile_row(half); }
  __device__ int place(int n, int e) const { return 8 * n + 2 * (lane % 4) + e; }
  template <class F>
  __device__ void each(const F& f) const {
    each_of_tile(f);
  }
  __device__ void products(float (&x)[2][4], int left, int right) const {
    rows_by_rows<T, D>(x, tile(left), tile(right));
  }

  // P: exp(g(c, b) - Z_c), and exp(f(c) - Z_c) on the diagonal; Z of this lane's two rows.
  __device__ void attention(float (&P)[2][4], float (&Z)[2]) const {
    products(P, kQ, kK);
    const float scale = static_cast<float>(a.p.scale);
    each([&](int half, int n, int i, int y) {
      const int x = row(half);
      float& s = P[n][i];
      const float add = __shfl_sync(~0u, column, y), f = __shfl_sync(~0u, own, y);
      const bool is_node = __shfl_sync(~0u, child, y) < 0;
      const int64_t at = y != x && x < size && y < size ? head.position(family, x, y) : -1;
      const float E = at < 0 ? 0.0f : static_cast<const float*>(a.p.positions)[at];
      s = add == -INFINITY || x >= size || (a.p.causal && y > x) ? -INFINITY
          : x == y && is_node                                    ? f
                                                                 : s * scale + add + E;
    });
    TileSoftmax softmax;
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
    sum_rows(kQ, a.n.q, a.p.head_size, weight, inverse);
    sum_rows(kK, a.n.k, a.p.head_size, weight, inverse);
    sum_rows(kV, a.n.v, a.p.value_size, weight, inverse);
  }
  // to[node] = factor * sum over rows x of share(x) row(x), as a product whose left operand has one row.
  __device__ void sum_rows(int which, float* to, int channels, float share, float factor) const {
    const int t = 2 * (lane % 4);
    const float s0 = __shfl_sync(~0u, share, t), s1 = __shfl_sync(~0u, share, t + 1);
    const float s8 = __shfl_sync(~0u, share, t + 8), s9 = __shfl_sync(~0u, share, t + 9);
    const bool first = lane < 4;
    const uint32_t left[4] = {first ? pack(s0, s1, T()) : 0u, 0u, first ? pack(s8, s9, T()) : 0u, 0u};
    spread(left, which, channels, [&](int half, int channel, float2 x) {
      if (first && half == 0)
        *reinterpret_cast<float2*>(to + node * channels + channel) = make_float2(x.x * factor, x.y * factor);
    });
  }

  // left x rows of a tensor: f(row, channel, two neighbouring numbers).
  template <class F>
  __device__ void spread(const uint32_t (&left)[4], int which, int channels, const F& f) const {
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      float x[2][4] = {};
      by_rows<T, D>(x[0], x[1], left, tile(which), n);
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
