// What the HSA kernels compute with: the nodes and leaves of one sequence and head.
#pragma once

#include "cuda/fixed_point.cuh"
#include "cuda/hsa_args.h"
#include "cuda/simt.cuh"

namespace strata::cuda {

// One sequence and query head, and its nodes.
template <class S>
struct Head {
  using C = typename ComputeOf<S>::Type;
  const HsaArgs<S>& a;
  int64_t head, key_head, batch, leaf_begin;
  int32_t sequence;

  __device__ Head(const HsaArgs<S>& args, int64_t family, int64_t h)
      : a(args),
        head(h),
        key_head(args.p.key_heads == args.p.heads ? h : h / (args.p.heads / args.p.key_heads)),
        sequence(args.plan.sequence[family]) {
    batch = a.plan.batch_of[sequence];
    leaf_begin = a.plan.leaf_begin[sequence];
  }
  __device__ int64_t node(int64_t family) const { return family * a.p.heads + head; }
  __device__ int64_t leaf(int64_t token) const { return (leaf_begin + token) * a.p.heads + head; }
  __device__ int64_t level_row(int64_t node_or_leaf, int level) const {  // of the means of q and k
    return (node_or_leaf * a.p.levels + level) * a.p.head_size;
  }
  // The row of a token in a view of queries, or of keys, of a level.
  template <class T, class AnyView>
  __device__ T* query_row(const AnyView& view, int64_t token, int level = 0) const {
    return &padded_rows_of<T>(view, batch, head)
                .at(a.plan.first_row[level * a.p.sequences + sequence] + (token >> level), 0);
  }
  template <class T, class AnyView>
  __device__ T* key_row(const AnyView& view, int64_t token, int level = 0) const {
    return &padded_rows_of<T>(view, batch, key_head)
                .at(a.plan.first_row[level * a.p.sequences + sequence] + (token >> level), 0);
  }
  __device__ C level_weight(int level) const {
    return a.p.level_weights == nullptr ? C(1) : static_cast<const C*>(a.p.level_weights)[head * a.p.levels + level];
  }

  __device__ C weight(int32_t child) const {
    if (child < 0) return a.n.weight[node(~child)];
    if (a.p.weights.data == nullptr) return C(1);
    return static_cast<const C*>(
        a.p.weights.data)[batch * a.p.weights.stride[0] + (a.plan.first_row[sequence] + child) * a.p.weights.stride[2]];
  }
  __device__ C kappa(int32_t child) const {
    if (child < 0) return a.n.kappa[node(~child)];
    return a.p.key_bias.data == nullptr ? C(0) : *key_row<const C>(a.p.key_bias, child);
  }
  // Channel c of a child's q, k, v or Y: a leaf's own, or a family's mean.
  __device__ C q(int32_t child, int level, int c) const {
    if (child < 0) return a.n.q[level_row(node(~child), level) + c];
    return static_cast<C>(query_row<const S>(a.p.q[level], child, level)[c * a.p.q[level].stride[3]]);
  }
  __device__ C k(int32_t child, int level, int c) const {
    if (child < 0) return a.n.k[level_row(node(~child), level) + c];
    return static_cast<C>(key_row<const S>(a.p.k[level], child, level)[c * a.p.k[level].stride[3]]);
  }
  __device__ C v(int32_t child, int c) const {
    if (child < 0) return a.n.v[node(~child) * a.p.value_size + c];
    return static_cast<C>(key_row<const S>(a.p.v, child)[c * a.p.v.stride[3]]);
  }
  __device__ C Y(const ConstView& dout, int32_t child, int c) const {
    if (child < 0) return a.n.Y[node(~child) * a.p.value_size + c];
    return static_cast<C>(query_row<const S>(dout, child)[c * dout.stride[3]]);
  }

  __device__ C dot_qk(int32_t x, int32_t y, int level) const {
    C sum = 0;
    for (int c = 0; c < a.p.head_size; ++c) sum += q(x, level, c) * k(y, level, c);
    return sum;
  }
  // Of all levels, with their weights.
  __device__ C dot_qk(int32_t x, int32_t y) const {
    C sum = 0;
    for (int level = 0; level < a.p.levels; ++level) sum += level_weight(level) * dot_qk(x, y, level);
    return sum;
  }
  __device__ C dot_Yv(const ConstView& dout, int32_t x, int32_t y) const {
    C sum = 0;
    for (int c = 0; c < a.p.value_size; ++c) sum += Y(dout, x, c) * v(y, c);
    return sum;
  }

  // f of a child: of a leaf s <q, k> + kappa + log w.
  __device__ C f(int32_t child) const {
    if (child < 0) return a.n.f[node(~child)];
    const C w = weight(child);
    return w > 0 ? static_cast<C>(a.p.scale) * dot_qk(child, child) + kappa(child) + log(w) : -static_cast<C>(INFINITY);
  }
  __device__ C Z(int32_t child) const { return child < 0 ? a.n.Z[node(~child)] : a.n.leaf_Z[leaf(child)]; }

  // Index into the position table for children at places x and y of a family; -1 for none.
  __device__ int64_t position(int64_t family, int x, int y) const {
    const int32_t kind = a.plan.kind[family];
    if (a.p.positions == nullptr || kind < 0) return -1;
    return ((head * a.p.kinds + kind) * a.p.places + x) * a.p.places + y;
  }
  // g of children at places x and y, -inf where the pair does not count.
  __device__ C g(int64_t family, const int32_t* children, int x, int y) const {
    const C w = weight(children[y]);
    if (!(w > 0) || (a.p.causal && y > x)) return -static_cast<C>(INFINITY);
    const int64_t at = position(family, x, y);
    const C E = at < 0 ? C(0) : static_cast<const C*>(a.p.positions)[at];
    return static_cast<C>(a.p.scale) * dot_qk(children[x], children[y]) + kappa(children[y]) + E + log(w);
  }
};

// exp(a - b), where -inf - (-inf) counts as -inf.
template <class C>
__device__ inline C exp_difference(C x, C y) {
  return x == -static_cast<C>(INFINITY) ? C(0) : exp(x - y);
}

// The hierarchy score of every sequence and head: f of its root.
template <class C>
__global__ void hsa_score_kernel(const C* f, C* score, int64_t sequences, int64_t heads, const int32_t* roots) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= sequences * heads) return;
  const int32_t root = roots[at / heads];
  score[at] = root < 0 ? -static_cast<C>(INFINITY) : f[root * heads + at % heads];
}

template <class S>
cudaError_t store_score(const HsaCall& call, const HsaArgs<S>& a, const HsaOutputs& o) {
  using C = typename ComputeOf<S>::Type;
  const int64_t count = call.p.sequences * call.p.heads;
  if (o.score != nullptr && count > 0)
    hsa_score_kernel<C><<<blocks_for(count, 128), 128, 0, call.stream>>>(
        a.n.f, static_cast<C*>(o.score), call.p.sequences, call.p.heads, call.numbers + call.plan.roots);
  return cudaGetLastError();
}

// The gradient of the position tables, as it is summed: null where it is not wanted.
inline FixedPointTable position_gradients(const HsaCall& call, const HsaGradients& g) {
  const int64_t entries = hsa_position_entries(call.p);
  const bool wanted = g.dpositions != nullptr && entries > 0;
  return {wanted ? static_cast<long long*>(call.workspace) : nullptr, entries};
}

}  // namespace strata::cuda
