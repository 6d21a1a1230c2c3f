// The deepest families of a tree, backward, on tensor cores (see hsa_leaves_cuda.cu and docs/MATH.md, section 2.4). With
// P the attention within a family, token itself included, and R = Y V^T:
//   mu_c = sum_b P_cb R_cb        G_cb = P_cb (m (R_cb - mu_c) + fbar |c| / |A|)
//   dq_c = s sum_b G_cb k_b       dk_b = s sum_c G_cb q_c       dv_b = m sum_c P_cb Y_c       plus shares of A's own
#include <cmath>
#include <type_traits>

#include "cuda/hsa_cuda_kernels.h"
#include "cuda/hsa_nodes.cuh"

namespace strata::cuda {
namespace {

constexpr int kWarps = 4, kRows = 16;
enum Tensors { kQ, kK, kV, kY, kCount };

// One family and head of a warp: its rows in shared memory, its weights in the lanes.
template <class T, int D>
struct Family {
  const HsaArgs<T>& a;
  Head<T> head;
  int64_t node;
  int lane, size;
  int32_t token;
  uint32_t tiles;
  float weight, column, total;  // lane x: weight of child x, and what it adds to the scores of others; sum of weights

  __device__ Family(const HsaArgs<T>& args, const ConstView& dout, int64_t family, int64_t h, uint32_t memory)
      : a(args), head(args, family, h), node(head.node(family)), lane(static_cast<int>(threadIdx.x) % 32), tiles(memory) {
    const int32_t begin = a.plan.child_begin[family];
    size = a.plan.child_begin[family + 1] - begin;
    token = a.plan.children[begin];
    const ConstView* const views[] = {&a.p.q, &a.p.k, &a.p.v, &dout};
#pragma unroll
    for (int which = 0; which < kCount; ++which) {
      const int channels = which < kV ? a.p.head_size : a.p.value_size;
      const T* rows = head.template row<const T>(*views[which], token);
#pragma unroll
      for (int at = lane; at < kRows * D / 8; at += 32) {
        const int row = at / (D / 8), chunk = at % (D / 8);
        const bool there = row < size && chunk * 8 < channels && head.weight(token + row) > 0;
        copy_async(tile(which) + tile_offset<D>(row, chunk),
                   there ? rows + row * views[which]->stride[2] + chunk * 8 : rows, there ? 16 : 0);
      }
    }
    commit_copies();
    weight = lane < size ? head.weight(token + lane) : 0.0f;
    column = weight > 0 ? head.kappa(token + lane) + __logf(weight) : -INFINITY;
    total = warp_sum(weight);
    wait_copies<0>();
    __syncwarp();
  }

  __device__ uint32_t tile(int which) const { return tiles + which * kRows * D * 2; }
  __device__ int row(int half) const { return lane / 4 + 8 * half; }
  __device__ int place(int n, int e) const { return 8 * n + 2 * (lane % 4) + e; }

  // 16 x 16 products of rows.
  __device__ void products(float (&x)[2][4], int left, int right) const {
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      uint32_t l[4], r[4];
      load_matrices(l, tile(left) + tile_offset<D>(lane % 16, 2 * kk + lane / 16));
      load_matrices(r, tile(right) + tile_offset<D>(lane / 16 * 8 + lane % 8, 2 * kk + lane / 8 % 2));
      multiply_add(x[0], l, r[0], r[1], T());
      multiply_add(x[1], l, r[2], r[3], T());
    }
  }

  // P and the Z of this lane's two rows.
  __device__ void attention(float (&P)[2][4], float (&Z)[2], int64_t family) const {
    products(P, kQ, kK);
    const float scale = static_cast<float>(a.p.scale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = -INFINITY, sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int x = row(half), y = place(n, e);
          float& s = P[n][2 * half + e];
          const float add = __shfl_sync(~0u, column, y);
          const int64_t at = y != x && x < size && y < size ? head.position(family, x, y) : -1;
          const float E = at < 0 ? 0.0f : static_cast<const float*>(a.p.positions)[at];
          s = add == -INFINITY || x >= size || (a.p.causal && y > x) ? -INFINITY : s * scale + add + E;
          top = fmaxf(top, s);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = P[n][2 * half + e];
          s = fast_exp2((s - base) * kLog2e);
          sum += s;
        }
      }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        P[n][2 * half] *= inverse;
        P[n][2 * half + 1] *= inverse;
      }
      Z[half] = top + __logf(sum);
    }
  }

  // mu of this lane's two rows.
  __device__ void means_of_rows(const float (&P)[2][4], const float (&R)[2][4], float (&mu)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mu[half] = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) mu[half] += P[n][2 * half] * R[n][2 * half] + P[n][2 * half + 1] * R[n][2 * half + 1];
      mu[half] += __shfl_xor_sync(~0u, mu[half], 1);
      mu[half] += __shfl_xor_sync(~0u, mu[half], 2);
      if (!(__shfl_sync(~0u, weight, row(half)) > 0)) mu[half] = 0;
    }
  }

  // Two neighbouring channels of a row.
  __device__ float2 pair(int which, int r, int p) const {
    uint32_t bits;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(bits) : "r"(tile(which) + tile_offset<D>(r, p / 4) + p % 4 * 4));
    const uint16_t low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits >> 16);
    return {static_cast<float>(reinterpret_cast<const T&>(low)), static_cast<float>(reinterpret_cast<const T&>(high))};
  }
};

template <class T, int D>
__global__ void __launch_bounds__(32 * kWarps)
    hsa_leaves_up_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ ConstView dout, int64_t first,
                         int64_t families) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (item >= families * a.p.heads) return;
  const int64_t family = first + item / a.p.heads;
  const Family<T, D> f(a, dout, family, item % a.p.heads, shared_address(memory) + warp * kCount * kRows * D * 2);
  const int lane = f.lane;
  float P[2][4] = {}, R[2][4] = {}, Z[2], mu[2];
  f.attention(P, Z, family);
  f.products(R, kY, kV);
  f.means_of_rows(P, R, mu);
  const float inverse = f.total > 0 ? 1.0f / f.total : 0.0f;
  float score = 0, mbar = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float w = __shfl_sync(~0u, f.weight, f.row(half));
    if (lane % 4 == 0 && w > 0) score += w * inverse * Z[half], mbar += mu[half];
  }
  score = warp_sum(score);
  mbar = warp_sum(mbar);
  const float kappa = warp_sum(f.weight > 0 ? f.weight * f.head.kappa(f.token + lane) : 0.0f);
  if (lane == 0) {
    a.n.f[f.node] = f.total > 0 ? score : -INFINITY;
    a.n.weight[f.node] = f.total;
    a.n.kappa[f.node] = kappa * inverse;
    a.n.mbar[f.node] = mbar;
  }
#pragma unroll
  for (int which = 0; which < kCount; ++which) {
    const int channels = which < kV ? a.p.head_size : a.p.value_size;
    float* const to = (which == kQ ? a.n.q : which == kK ? a.n.k : which == kV ? a.n.v : a.n.Y) + f.node * channels;
    for (int p = lane; p < D / 2; p += 32) {
      float x = 0, y = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float w = __shfl_sync(~0u, f.weight, r), factor = which == kY ? (w > 0 ? 1.0f : 0.0f) : w * inverse;
        const float2 both = f.pair(which, r, p);
        x += factor * both.x;
        y += factor * both.y;
      }
      if (2 * p < channels) to[2 * p] = x, to[2 * p + 1] = y;
    }
  }
}

// dq (or dk, dv) of the family's rows: factor * left x rows of a tile, plus shares of A's own.
template <class T, int D>
__device__ void store_gradient(const Family<T, D>& f, const View& view, int channels, const uint32_t (&left)[4],
                               int which, const float* above, float factor) {
  const int lane = f.lane;
  T* const rows = f.head.template row<T>(view, f.token);
  float share[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float w = __shfl_sync(~0u, f.weight, f.row(half));
    share[half] = f.total > 0 ? w / f.total : 0.0f;
  }
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    float x[2][4] = {};
    uint32_t r[4];
    load_matrices_transposed(r, f.tile(which) + tile_offset<D>(lane % 16, n + lane / 16));
    multiply_add(x[0], left, r[0], r[1], T());
    multiply_add(x[1], left, r[2], r[3], T());
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int channel = (n + m) * 8 + 2 * (lane % 4);
      if (channel >= channels) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (f.row(half) >= f.size) continue;
        float lower = x[m][2 * half] * factor, upper = x[m][2 * half + 1] * factor;
        if (above != nullptr) lower += share[half] * above[channel], upper += share[half] * above[channel + 1];
        reinterpret_cast<uint32_t&>(rows[f.row(half) * view.stride[2] + channel]) = pack(lower, upper, T());
      }
    }
  }
}

// x, 16 x 16, transposed, as a left operand: through shared memory.
template <class T>
__device__ void transposed(uint32_t (&left)[4], const uint32_t (&straight)[4], uint32_t scratch, int lane) {
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 4; ++r)  // rows of 32 bytes
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(scratch + (lane / 4 + r % 2 * 8) * 32 + r / 2 * 16 + lane % 4 * 4),
                 "r"(straight[r]));
  __syncwarp();
  load_matrices_transposed(left, scratch + (lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16);
}

template <class T, int D>
__global__ void __launch_bounds__(32 * kWarps)
    hsa_leaves_down_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ HsaGradients g, int64_t first,
                           int64_t families, bool root) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (item >= families * a.p.heads) return;
  const int64_t family = first + item / a.p.heads;
  const uint32_t start = shared_address(memory) + warp * (kCount * kRows * D * 2 + 1024);
  const Family<T, D> f(a, g.dout, family, item % a.p.heads, start);
  const int lane = f.lane;
  const uint32_t scratch = start + kCount * kRows * D * 2;
  float P[2][4] = {}, R[2][4] = {}, Z[2], mu[2];
  f.attention(P, Z, family);
  f.products(R, kY, kV);
  f.means_of_rows(P, R, mu);
  const float m = root ? 1.0f : a.n.m[f.node];
  const float fbar = !root               ? a.n.fbar[f.node]
                     : g.dscore == nullptr ? 0.0f
                                         : static_cast<const float*>(g.dscore)[a.plan.sequence[family] * a.p.heads + f.head.head];
  float G[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float w = __shfl_sync(~0u, f.weight, f.row(half)), z = f.total > 0 ? fbar * w / f.total : 0.0f;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 2 * half + e;
        const bool real = w > 0 && P[n][i] != 0;  // rows that do not count give nothing
        G[n][i] = real ? P[n][i] * (m * (R[n][i] - mu[half]) + z) : 0.0f;
        P[n][i] = real ? P[n][i] * m : 0.0f;
      }
    }
  }
  // The sum over a column: what its key bias gets.
  if (g.dkey_bias.data != nullptr) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = G[n][e] + G[n][2 + e];
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(~0u, sum, offset);
        const int y = f.place(n, e);
        const float w = __shfl_sync(~0u, f.weight, y);
        if (lane < 4 && y < f.size)
          *f.head.template row<float>(g.dkey_bias, f.token + y) =
              w > 0 ? sum + (root ? 0.0f : w / f.total * a.n.dkappa[f.node]) : 0.0f;
      }
    }
  }
  const uint32_t forth[4] = {pack(G[0][0], G[0][1], T()), pack(G[0][2], G[0][3], T()), pack(G[1][0], G[1][1], T()),
                             pack(G[1][2], G[1][3], T())};
  const uint32_t masses[4] = {pack(P[0][0], P[0][1], T()), pack(P[0][2], P[0][3], T()), pack(P[1][0], P[1][1], T()),
                              pack(P[1][2], P[1][3], T())};
  uint32_t back[4], values[4];
  transposed<T>(back, forth, scratch, lane);
  transposed<T>(values, masses, scratch, lane);
  const float scale = static_cast<float>(a.p.scale);
  store_gradient(f, g.dq, a.p.head_size, forth, kK, root ? nullptr : a.n.dq + f.node * a.p.head_size, scale);
  store_gradient(f, g.dk, a.p.head_size, back, kQ, root ? nullptr : a.n.dk + f.node * a.p.head_size, scale);
  store_gradient(f, g.dv, a.p.value_size, values, kY, root ? nullptr : a.n.dv + f.node * a.p.value_size, 1.0f);
}

}  // namespace

bool hsa_leaves_backward_fit(const HsaProblem& p, const HsaPlan& plan, const HsaGradients& g) {
  return hsa_leaves_fit(p, plan, {g.dv, nullptr}) && g.dweights.data == nullptr && g.dpositions == nullptr &&
         is_wide(g.dout, p.value_size) && is_wide(g.dq, p.head_size) && is_wide(g.dk, p.head_size);
}

template <class T>
cudaError_t hsa_leaves_backward(const HsaArgs<T>& a, const HsaGradients& g, int64_t first, int64_t families, bool down,
                                bool root, cudaStream_t stream) {
  const unsigned blocks = blocks_for(families * a.p.heads, kWarps);
  auto run = [&](auto size) {
    constexpr int D = decltype(size)::value;
    constexpr int kMemory = kWarps * (kCount * kRows * D * 2 + 1024);
    if (down) {
      const auto kernel = hsa_leaves_down_kernel<T, D>;
      if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory);
          e != cudaSuccess)
        return e;
      kernel<<<blocks, 32 * kWarps, kMemory, stream>>>(a, g, first, families, root);
    } else {
      const auto kernel = hsa_leaves_up_kernel<T, D>;
      if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory);
          e != cudaSuccess)
        return e;
      kernel<<<blocks, 32 * kWarps, kMemory, stream>>>(a, g.dout, first, families);
    }
    return cudaGetLastError();
  };
  return a.p.head_size <= 64 && a.p.value_size <= 64 ? run(std::integral_constant<int, 64>())
                                                     : run(std::integral_constant<int, 128>());
}

template cudaError_t hsa_leaves_backward(const HsaArgs<__nv_bfloat16>&, const HsaGradients&, int64_t, int64_t, bool,
                                         bool, cudaStream_t);
template cudaError_t hsa_leaves_backward(const HsaArgs<__half>&, const HsaGradients&, int64_t, int64_t, bool, bool,
                                         cudaStream_t);

}  // namespace strata::cuda
