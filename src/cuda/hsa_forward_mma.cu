// HSA forward with mma.sync (hsa_mma.cuh; wide families are in hsa_wide_mma.cuh).
#include "cuda/device.h"
#include "cuda/hsa_mma.cuh"
#include "cuda/hsa_wide_kernels.h"
#include "cuda/launch.cuh"

namespace strata::cuda {
namespace {

// Means, f, and every child's attention on its siblings; that of leaves stays in `out` until the ancestors are known.
template <class T, int D, bool kOneLevel>
__global__ void __launch_bounds__(32 * kFamilyWarps)
    hsa_mma_up_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ View out, int64_t first,
                      int64_t families, int warp_memory) {
  extern __shared__ __align__(1024) unsigned char memory[];
  follow_kernel();
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
  if (f.leaves) {  // rows leave through shared memory, 16 bytes at a time
    const uint32_t tile = f.q_tile(0);
    __syncwarp();  // the queries have been read
    f.spread(left, f.v_tile(), 0, a.p.value_size, [&](int half, int channel, float2 x) {
      store_shared(tile + tile_offset<D>(f.row(half), channel / 8) + channel % 8 * 2, pack(x.x, x.y, T()));
    });
    __syncwarp();
    f.store_leaves(out, tile, a.p.value_size);
    return;
  }
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

// above + m * the eight numbers at `row`, into y.
__device__ inline void add_above(const float (&above)[8], float m, const float* row, float (&y)[8]) {
  const float4 low = reinterpret_cast<const float4*>(row)[0], high = reinterpret_cast<const float4*>(row)[1];
  const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int c = 0; c < 8; ++c) y[c] = above[c] + m * x[c];
}

// acc(c) = acc(A) + m(A) local(c), m(c) = m(A) exp(f(c) - Z(c)), and y of the leaves. A warp has a narrow family, or a
// tile of a wide one; `lanes` of them share a row, eight channels each. It goes backwards, as the leaves that the way
// up wrote last are still in the second cache.
template <class T>
__global__ void __launch_bounds__(32 * kFamilyWarps)
    hsa_mma_down_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ View out, int64_t first,
                        int64_t count, bool wide, bool root, int lanes) {
  follow_kernel();
  const HsaProblem& p = a.p;
  const int lane = lane_of_thread(), channel = lane % lanes * 8, step = 32 / lanes;
  const int64_t item = count * p.heads - 1 - (static_cast<int64_t>(blockIdx.x) * kFamilyWarps + warp_of_thread());
  if (item < 0 || channel >= p.value_size) return;
  const Quotient at(item, p.heads);
  const int64_t at_item = first + at.value, family = wide ? a.plan.tile_family[at_item] : at_item;
  const Head<T> head(a, family, at.rest);
  const int32_t begin = a.plan.child_begin[family] + (wide ? a.plan.tile_child[at_item] : 0);
  const int size = min(max(kNarrowFamily, a.plan.tile_size), a.plan.child_begin[family + 1] - begin);
  const int64_t node = head.node(family);
  const float m = root ? 1.0f : a.n.m[node];
  const float none[8] = {};
  float above[8] = {};
  if (!root) add_above(none, 1.0f, a.n.local + node * p.value_size + channel, above);
  constexpr int kRows = 4;  // that are loaded before any is stored
  for (int x0 = lane / lanes; x0 < size; x0 += kRows * step) {
    int32_t child[kRows];
    bool leaf[kRows], real[kRows];
    uint4* place[kRows];
    uint4 local[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) child[i] = x0 + i * step < size ? a.plan.children[begin + x0 + i * step] : 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      leaf[i] = x0 + i * step < size && child[i] >= 0;
      if (!leaf[i]) continue;
      place[i] = reinterpret_cast<uint4*>(head.template query_row<T>(out, child[i]) + channel);
      local[i] = *place[i];
      real[i] = head.weight(child[i]) > 0;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float y[8];
      if (!leaf[i]) {
        if (x0 + i * step >= size) continue;
        const int64_t below = head.node(~child[i]);
        float4* const row = reinterpret_cast<float4*>(a.n.local + below * p.value_size + channel);
        add_above(above, m, &row->x, y);
        row[0] = make_float4(y[0], y[1], y[2], y[3]), row[1] = make_float4(y[4], y[5], y[6], y[7]);
        if (channel == 0) a.n.m[below] = m * exp_difference(a.n.f[below], a.n.Z[below]);
        continue;
      }
      const uint32_t in[4] = {local[i].x, local[i].y, local[i].z, local[i].w};
      uint32_t result[4];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const float2 x = unpack(in[pair], T());
        result[pair] = real[i] ? pack(above[2 * pair] + m * x.x, above[2 * pair + 1] + m * x.y, T()) : 0u;
      }
      __stcs(place[i], make_uint4(result[0], result[1], result[2], result[3]));
    }
  }
}

// Lanes that share a row: a power of two, eight channels each.
int lanes_of_row(const HsaProblem& p) {
  int lanes = 1;
  while (8 * lanes < p.value_size) lanes *= 2;
  return lanes;
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
    if (launch.families > 0) {
      const cudaError_t e = launch_following(up, launch.blocks, launch.threads, launch.memory, call.stream, a, o.out,
                                             launch.first, launch.families, warp_memory);
      if (e != cudaSuccess) return e;
    }
    if (const cudaError_t e = hsa_wide_up(call, a, o.out, depth); e != cudaSuccess) return e;
  }
  for (int64_t depth = 0; depth < depths_of(plan); ++depth) {
    auto down = [&](int64_t first, int64_t end, bool wide) {
      if (end == first) return cudaSuccess;
      return launch_following(hsa_mma_down_kernel<T>, blocks_for((end - first) * call.p.heads, kFamilyWarps),
                              32 * kFamilyWarps, 0, call.stream, a, o.out, first, end - first, wide, depth == 0,
                              lanes_of_row(call.p));
    };
    if (const cudaError_t e = down(plan.depth_begin[depth], plan.wide_begin[depth], false); e != cudaSuccess) return e;
    if (const cudaError_t e = down(plan.tile_begin[depth], plan.tile_begin[depth + 1], true); e != cudaSuccess)
      return e;
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
