// The families of one depth, bottom-up, for any tree: a block per family and head. Forward and backward both start so.
#pragma once

#include "cuda/hsa_nodes.cuh"
#include "cuda/online_softmax.cuh"

namespace strata::cuda {
namespace {

constexpr int kFamilyThreads = 128;

// The weighted means of q, k, v and kappa over the children.
template <class S>
__global__ void __launch_bounds__(kFamilyThreads)
    hsa_means_kernel(const __grid_constant__ HsaArgs<S> a, int64_t first) {
  using C = typename ComputeOf<S>::Type;
  const int64_t family = first + blockIdx.x;
  const Head<S> head(a, family, blockIdx.y);
  const int32_t* children = a.plan.children + a.plan.child_begin[family];
  const int size = a.plan.child_begin[family + 1] - a.plan.child_begin[family];
  const int64_t node = head.node(family);
  const int thread = static_cast<int>(threadIdx.x);
  C total = 0;
  for (int x = 0; x < size; ++x) total += head.weight(children[x]);
  const C inverse = total > 0 ? C(1) / total : C(0);
  const int d = a.p.head_size, width = a.p.levels * d, values = a.p.v.data == nullptr ? 0 : a.p.value_size;
  for (int c = thread; c < 2 * width + values; c += kFamilyThreads) {
    const int level = c % width / d, channel = c % width % d;
    C sum = 0;
    for (int x = 0; x < size; ++x) {
      const C w = head.weight(children[x]);
      if (!(w > 0)) continue;  // padding may hold anything
      sum += w * (c < width       ? head.q(children[x], level, channel)
                  : c < 2 * width ? head.k(children[x], level, channel)
                                  : head.v(children[x], c - 2 * width));
    }
    (c < width       ? a.n.q[node * width + c]
     : c < 2 * width ? a.n.k[node * width + c - width]
                     : a.n.v[node * values + c - 2 * width]) = sum * inverse;
  }
  if (thread != 0) return;
  C kappa = 0;
  for (int x = 0; x < size; ++x) {
    const C w = head.weight(children[x]);
    if (w > 0) kappa += w * head.kappa(children[x]);
  }
  a.n.kappa[node] = kappa * inverse;
  a.n.weight[node] = total;
}

// Z of every child and, with values, its attention on its siblings; then f of the family.
template <class S>
__global__ void __launch_bounds__(kFamilyThreads)
    hsa_family_kernel(const __grid_constant__ HsaArgs<S> a, int64_t first) {
  using C = typename ComputeOf<S>::Type;
  constexpr int kWarps = kFamilyThreads / 32;
  const int64_t family = first + blockIdx.x;
  const Head<S> head(a, family, blockIdx.y);
  const int32_t* children = a.plan.children + a.plan.child_begin[family];
  const int size = a.plan.child_begin[family + 1] - a.plan.child_begin[family];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool with_local = a.n.local != nullptr;
  for (int x = static_cast<int>(threadIdx.x) / 32; x < size; x += kWarps) {
    const int32_t child = children[x];
    const C own = head.f(child);
    OnlineSoftmax<C> softmax{own, own == -static_cast<C>(INFINITY) ? C(0) : C(1)};
    C local[kLaneChannels] = {};
    for (int y0 = 0; y0 < size; y0 += 32) {
      const int y = y0 + lane;
      C rescale;
      const C weight =
          softmax.add_warp(y < size && y != x ? head.g(family, children, x, y) : -static_cast<C>(INFINITY), rescale);
      if (!with_local) continue;
#pragma unroll
      for (C& channel : local) channel *= rescale;
      for (int other = 0; other < 32 && y0 + other < size; ++other) {
        const C part = __shfl_sync(~0u, weight, other);
        if (part == 0) continue;
        each_lane_channel(a.p.value_size, [&](int i, int c) { local[i] += part * head.v(children[y0 + other], c); });
      }
    }
    const C Z = softmax.lse();
    if (lane == 0) (child < 0 ? a.n.Z[head.node(~child)] : a.n.leaf_Z[head.leaf(child)]) = Z;
    if (!with_local) continue;
    const C inverse = softmax.inverse();
    const C self = child >= 0 ? exp_difference(own, Z) : C(0);  // a node's own mass goes down, not out
    each_lane_channel(a.p.value_size, [&](int i, int c) {
      const C result = local[i] * inverse + (self > 0 ? self * head.v(child, c) : C(0));
      (child < 0 ? a.n.local[head.node(~child) * a.p.value_size + c]
                 : a.n.leaf_local[head.leaf(child) * a.p.value_size + c]) = result;
    });
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int64_t node = head.node(family);
  const C total = a.n.weight[node];
  C f = 0;
  for (int x = lane; x < size; x += 32) {
    const C w = head.weight(children[x]);
    if (w > 0) f += w / total * head.Z(children[x]);
  }
  f = warp_sum(f);
  if (lane == 0) a.n.f[node] = total > 0 ? f : -static_cast<C>(INFINITY);
}

template <class S>
dim3 family_grid(const HsaArgs<S>& a, const HsaPlan& plan, int64_t depth) {
  return {static_cast<unsigned>(families_at(plan, depth)), static_cast<unsigned>(a.p.heads)};
}
template <class S>
void launch_families(const HsaArgs<S>& a, const HsaPlan& plan, int64_t depth, cudaStream_t stream) {
  const dim3 grid = family_grid(a, plan, depth);
  hsa_means_kernel<S><<<grid, kFamilyThreads, 0, stream>>>(a, plan.depth_begin[depth]);
  hsa_family_kernel<S><<<grid, kFamilyThreads, 0, stream>>>(a, plan.depth_begin[depth]);
}

}  // namespace
}  // namespace strata::cuda
