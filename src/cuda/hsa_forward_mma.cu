// HSA forward with mma.sync (hsa_mma.cuh; wide families are in hsa_wide_mma.cuh).
#include "cuda/device.h"
#include "cuda/hsa_mma.cuh"
#include "cuda/hsa_wide_kernels.h"

namespace strata::cuda {
namespace {

// Means, f, and every child's attention on its siblings; that of leaves stays in `out` until the ancestors are known.
template <class T, int D, bool kOneLevel>
__global__ void __launch_bounds__(32 * kFamilyWarps)
    hsa_mma_up_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ View out, int64_t first,
                      int64_t families, int warp_memory) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const FamilyItem item(first, families, a.p.heads);
  if (!item.exists) return;
  const FamilyTile<T, D, kOneLevel> f(a, {}, item.family, item.head,
                                      shared_address(memory) + warp_of_thread() * warp_memory);
  float P[2][4] = {}, Z[2];
  f.attention(P, Z);
  f.store_node(Z);
  int32_t child[2];
  for (int half = 0; half < 2; ++half) child[half] = __shfl_sync(~0u, f.child, f.row(half));
  f.each([&](int half, int n, int i, int y) {  // a node's own mass goes down, not out
    if (y == f.row(half) && child[half] < 0) P[n][i] = 0;
  });
  uint32_t left[4];
  tile_operand<T>(left, P);
  T* leaves[2];
  float* nodes[2];
  for (int half = 0; half < 2; ++half) {
    leaves[half] = child[half] < 0 ? nullptr : f.head.template query_row<T>(out, child[half]);
    nodes[half] = child[half] < 0 ? a.n.local + f.head.node(~child[half]) * a.p.value_size : nullptr;
  }
  f.spread(left, f.v_tile(), 0, a.p.value_size, [&](int half, int channel, float2 x) {
    if (leaves[half] != nullptr) {
      *reinterpret_cast<uint32_t*>(leaves[half] + channel) = pack(x.x, x.y, T());
    } else {
      *reinterpret_cast<float2*>(nodes[half] + channel) = x;
    }
  });
}

// acc(c) = acc(A) + m(A) local(c), m(c) = m(A) exp(f(c) - Z(c)), and y of the leaves; eight channels at a time. A warp
// has a narrow family, or a tile of a wide one.
template <class T>
__global__ void __launch_bounds__(32 * kFamilyWarps)
    hsa_mma_down_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ View out, int64_t first,
                        int64_t count, bool wide, bool root) {
  const HsaProblem& p = a.p;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kFamilyWarps + warp;
  if (item >= count * p.heads) return;
  const int64_t at_item = first + item / p.heads, family = wide ? a.plan.tile_family[at_item] : at_item;
  const Head<T> head(a, family, item % p.heads);
  const int32_t begin = a.plan.child_begin[family] + (wide ? a.plan.tile_child[at_item] : 0);
  const int size = min(max(kNarrowFamily, a.plan.tile_size), a.plan.child_begin[family + 1] - begin),
            chunks = p.value_size / 8;
  const int64_t node = head.node(family);
  const float m = root ? 1.0f : a.n.m[node];
  for (int at = lane; at < size * chunks; at += 32) {
    const int32_t child = a.plan.children[begin + at / chunks];
    const int channel = at % chunks * 8;
    float above[8] = {};
    if (!root) {
#pragma unroll
      for (int c = 0; c < 8; ++c) above[c] = a.n.local[node * p.value_size + channel + c];
    }
    if (child < 0) {
      float* local = a.n.local + head.node(~child) * p.value_size + channel;
#pragma unroll
      for (int c = 0; c < 8; ++c) local[c] = above[c] + m * local[c];
      if (channel == 0) a.n.m[head.node(~child)] = m * exp_difference(head.f(child), head.Z(child));
      continue;
    }
    uint4& place = *reinterpret_cast<uint4*>(head.template query_row<T>(out, child) + channel);
    const uint4 local = place;
    const uint32_t in[4] = {local.x, local.y, local.z, local.w};
    const bool real = head.weight(child) > 0;
    uint32_t result[4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const uint16_t low = static_cast<uint16_t>(in[pair]), high = static_cast<uint16_t>(in[pair] >> 16);
      const float x = above[2 * pair] + m * static_cast<float>(reinterpret_cast<const T&>(low));
      const float y = above[2 * pair + 1] + m * static_cast<float>(reinterpret_cast<const T&>(high));
      result[pair] = real ? pack(x, y, T()) : 0u;
    }
    place = make_uint4(result[0], result[1], result[2], result[3]);
  }
}

template <class T, int D>
cudaError_t forward(const HsaCall& call, const HsaOutputs& o) {
  const HsaPlan& plan = call.plan;
  const HsaArgs<T> a = hsa_args<T>(call, nullptr, true);
  const auto up = call.p.levels == 1 ? hsa_mma_up_kernel<T, D, true> : hsa_mma_up_kernel<T, D, false>;
  const int warp_memory = family_memory(call.p, false);
  if (const cudaError_t e = allow_shared_memory(up, FamilyLaunch(call, 0, false).memory); e != cudaSuccess) return e;
  for (int64_t depth = depths_of(plan) - 1; depth >= 0; --depth) {
    const FamilyLaunch launch(call, depth, false);
    if (launch.families > 0)
      up<<<launch.blocks, launch.threads, launch.memory, call.stream>>>(a, o.out, launch.first, launch.families,
                                                                        warp_memory);
    if (const cudaError_t e = hsa_wide_up(call, a, o.out, depth); e != cudaSuccess) return e;
  }
  for (int64_t depth = 0; depth < depths_of(plan); ++depth) {
    auto down = [&](int64_t first, int64_t end, bool wide) {
      if (end > first)
        hsa_mma_down_kernel<T>
            <<<blocks_for((end - first) * call.p.heads, kFamilyWarps), 32 * kFamilyWarps, 0, call.stream>>>(
                a, o.out, first, end - first, wide, depth == 0);
    };
    down(plan.depth_begin[depth], plan.wide_begin[depth], false);
    down(plan.tile_begin[depth], plan.tile_begin[depth + 1], true);
  }
  return store_score(call, a, o);
}

}  // namespace

int hsa_mma_warps(const HsaProblem& p) {
  int warps = kFamilyWarps;
  while (warps > 0 && warps * family_memory(p, true) > shared_memory_per_block()) warps /= 2;
  return warps;
}

cudaError_t hsa_forward_mma(const HsaCall& call, const HsaOutputs& o) {
  return with_16_bit_storage(call.p.dtype, [&](auto t) {
    return has_small_heads(call.p) ? forward<decltype(t), 64>(call, o) : forward<decltype(t), 128>(call, o);
  });
}

}  // namespace strata::cuda
