// The deepest families of a tree on tensor cores: all their children are leaves, and where there are at most 16 of
// them a family is one 16 x 16 attention, done by one warp. That is where nearly all the work of a tree is, and it
// costs little more than reading q, k, v and writing the output.
#include <cmath>

#include "cuda/hsa_cuda_kernels.h"
#include "cuda/hsa_nodes.cuh"

namespace strata::cuda {
namespace {

constexpr int kWarps = 4, kRows = 16;

// Means, f, and attention within the family, which is left in `out` until the ancestors are known.
template <class T, int D>
__global__ void __launch_bounds__(32 * kWarps)
    hsa_leaves_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ View out, int64_t first,
                      int64_t families) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const HsaProblem& p = a.p;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (item >= families * p.heads) return;
  const int64_t family = first + item / p.heads;
  const Head<T> head(a, family, item % p.heads);
  const int32_t begin = a.plan.child_begin[family];
  const int size = a.plan.child_begin[family + 1] - begin;
  const int32_t token = a.plan.children[begin];  // leaves of a family are neighbours

  const uint32_t tiles = shared_address(memory) + warp * 3 * kRows * D * 2;
  const ConstView* const views[] = {&p.q, &p.k, &p.v};
#pragma unroll
  for (int which = 0; which < 3; ++which) {
    const int channels = which < 2 ? p.head_size : p.value_size;
    const T* rows = head.template row<const T>(*views[which], token);
#pragma unroll
    for (int at = lane; at < kRows * D / 8; at += 32) {
      const int row = at / (D / 8), chunk = at % (D / 8);
      // Padding may hold anything, and does not count.
      const bool there = row < size && chunk * 8 < channels && head.weight(token + row) > 0;
      copy_async(tiles + which * kRows * D * 2 + tile_offset<D>(row, chunk),
                 there ? rows + row * views[which]->stride[2] + chunk * 8 : rows, there ? 16 : 0);
    }
  }
  commit_copies();
  // What a column adds to its scores, and its weight; lane x has child x.
  const float weight = lane < size ? head.weight(token + lane) : 0.0f;
  const float column = weight > 0 ? head.kappa(token + lane) + __logf(weight) : -INFINITY;
  const float total = warp_sum(weight), inverse_total = total > 0 ? 1.0f / total : 0.0f;
  wait_copies<0>();
  __syncwarp();

  float s[2][4] = {};
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    uint32_t q[4], k[4];
    load_matrices(q, tiles + tile_offset<D>(lane % 16, 2 * kk + lane / 16));
    load_matrices(k, tiles + kRows * D * 2 + tile_offset<D>(lane / 16 * 8 + lane % 8, 2 * kk + lane / 8 % 2));
    multiply_add(s[0], q, k[0], k[1], T());
    multiply_add(s[1], q, k[2], k[3], T());
  }
  const float scale = static_cast<float>(p.scale);
  float inverse[2], Z[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int y = 8 * n + 2 * (lane % 4) + e;
        float& x = s[n][2 * half + e];
        const float add = __shfl_sync(~0u, column, y);
        const int64_t at = y != row && row < size && y < size ? head.position(family, row, y) : -1;
        const float E = at < 0 ? 0.0f : static_cast<const float*>(p.positions)[at];
        x = add == -INFINITY || (p.causal && y > row) ? -INFINITY : x * scale + add + E;
        top = fmaxf(top, x);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float base = top == -INFINITY ? 0.0f : top;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[n][2 * half + e];
        x = fast_exp2((x - base) * kLog2e);
        sum += x;
      }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    inverse[half] = sum == 0 ? 0.0f : 1.0f / sum;
    Z[half] = top + __logf(sum);
  }
  // f = sum of the shares' Z; the four lanes of a row have the same.
  float f = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float w = __shfl_sync(~0u, weight, lane / 4 + 8 * half);
    if (lane % 4 == 0 && w > 0) f += w * inverse_total * Z[half];
  }
  f = warp_sum(f);
  const int64_t node = head.node(family);
  if (lane == 0) {
    a.n.f[node] = total > 0 ? f : -INFINITY;
    a.n.weight[node] = total;
  }
  const float kappa = warp_sum(weight > 0 ? weight * head.kappa(token + lane) : 0.0f);
  if (lane == 0) a.n.kappa[node] = kappa * inverse_total;

  // Means: a lane has two channels at a time.
#pragma unroll
  for (int which = 0; which < 3; ++which) {
    const int channels = which < 2 ? p.head_size : p.value_size;
    float* const means = (which == 0 ? a.n.q : which == 1 ? a.n.k : a.n.v) + node * channels;
#pragma unroll
    for (int pair = lane; pair < D / 2; pair += 32) {
      float x = 0, y = 0;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        uint32_t bits;
        asm volatile("ld.shared.b32 %0, [%1];"
                     : "=r"(bits)
                     : "r"(tiles + which * kRows * D * 2 + tile_offset<D>(row, pair / 4) + pair % 4 * 4));
        const uint16_t low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits >> 16);
        const float w = __shfl_sync(~0u, weight, row);
        x += w * static_cast<float>(reinterpret_cast<const T&>(low));
        y += w * static_cast<float>(reinterpret_cast<const T&>(high));
      }
      if (2 * pair < channels) means[2 * pair] = x * inverse_total, means[2 * pair + 1] = y * inverse_total;
    }
  }

  uint32_t share[4] = {pack(s[0][0] * inverse[0], s[0][1] * inverse[0], T()),
                       pack(s[0][2] * inverse[1], s[0][3] * inverse[1], T()),
                       pack(s[1][0] * inverse[0], s[1][1] * inverse[0], T()),
                       pack(s[1][2] * inverse[1], s[1][3] * inverse[1], T())};
  T* const rows = head.template row<T>(out, token);
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    float o[2][4] = {};
    uint32_t v[4];
    load_matrices_transposed(v, tiles + 2 * kRows * D * 2 + tile_offset<D>(lane % 16, n + lane / 16));
    multiply_add(o[0], share, v[0], v[1], T());
    multiply_add(o[1], share, v[2], v[3], T());
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half, channel = (n + m) * 8 + 2 * (lane % 4);
        if (row < size && channel < p.value_size)
          reinterpret_cast<uint32_t&>(rows[row * out.stride[2] + channel]) = pack(o[m][2 * half], o[m][2 * half + 1], T());
      }
    }
  }
}

// y = acc(A) + m(A) local, eight channels at a time.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    hsa_leaf_spread_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ View out, int64_t first,
                           int64_t families, bool root) {
  const HsaProblem& p = a.p;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (item >= families * p.heads) return;
  const int64_t family = first + item / p.heads;
  const Head<T> head(a, family, item % p.heads);
  const int32_t begin = a.plan.child_begin[family];
  const int size = a.plan.child_begin[family + 1] - begin, chunks = p.value_size / 8;
  const int32_t token = a.plan.children[begin];
  const int64_t node = head.node(family);
  const float m = root ? 1.0f : a.n.m[node];
  T* const rows = head.template row<T>(out, token);
  for (int at = lane; at < size * chunks; at += 32) {
    const int row = at / chunks, chunk = at % chunks;
    uint4& place = reinterpret_cast<uint4&>(rows[row * out.stride[2] + chunk * 8]);
    const bool real = head.weight(token + row) > 0;
    const uint4 local = place;
    const uint32_t in[4] = {local.x, local.y, local.z, local.w};
    uint32_t result[4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const uint16_t low = static_cast<uint16_t>(in[pair]), high = static_cast<uint16_t>(in[pair] >> 16);
      const float* above = root ? nullptr : a.n.local + node * p.value_size + chunk * 8 + 2 * pair;
      const float x = (root ? 0.0f : above[0]) + m * static_cast<float>(reinterpret_cast<const T&>(low));
      const float y = (root ? 0.0f : above[1]) + m * static_cast<float>(reinterpret_cast<const T&>(high));
      result[pair] = real ? pack(x, y, T()) : 0u;
    }
    place = make_uint4(result[0], result[1], result[2], result[3]);
  }
}

}  // namespace

bool hsa_leaves_fit(const HsaProblem& p, const HsaPlan& plan, const HsaOutputs& o) {
  return (p.dtype == DType::kBFloat16 || p.dtype == DType::kFloat16) && p.v.data != nullptr && p.head_size <= 128 &&
         p.value_size <= 128 && plan.families > 0 && plan.widest_leaf_family <= kRows && is_wide(p.q, p.head_size) &&
         is_wide(p.k, p.head_size) && is_wide(p.v, p.value_size) && is_wide(o.out, p.value_size);
}

template <class T>
void hsa_leaves(const HsaArgs<T>& a, const View& out, int64_t first, int64_t families, cudaStream_t stream) {
  const unsigned blocks = blocks_for(families * a.p.heads, kWarps);
  if (a.p.head_size <= 64 && a.p.value_size <= 64) {
    hsa_leaves_kernel<T, 64><<<blocks, 32 * kWarps, kWarps * 3 * kRows * 64 * 2, stream>>>(a, out, first, families);
  } else {
    hsa_leaves_kernel<T, 128><<<blocks, 32 * kWarps, kWarps * 3 * kRows * 128 * 2, stream>>>(a, out, first, families);
  }
}

template <class T>
void hsa_leaf_spread(const HsaArgs<T>& a, const View& out, int64_t first, int64_t families, bool root,
                     cudaStream_t stream) {
  hsa_leaf_spread_kernel<T>
      <<<blocks_for(families * a.p.heads, kWarps), 32 * kWarps, 0, stream>>>(a, out, first, families, root);
}

template void hsa_leaves(const HsaArgs<__nv_bfloat16>&, const View&, int64_t, int64_t, cudaStream_t);
template void hsa_leaves(const HsaArgs<__half>&, const View&, int64_t, int64_t, cudaStream_t);
template void hsa_leaf_spread(const HsaArgs<__nv_bfloat16>&, const View&, int64_t, int64_t, bool, cudaStream_t);
template void hsa_leaf_spread(const HsaArgs<__half>&, const View&, int64_t, int64_t, bool, cudaStream_t);

}  // namespace strata::cuda
