// What the HSA kernels see: the plan (src/cuda/hsa_plan.cc) and the numbers of nodes and leaves, per head.
#pragma once

#include "cuda/fixed_point.cuh"
#include "strata/cuda.h"

namespace strata::cuda {

// The plan on the device. Families of all sequences are numbered by depth, so that those of one depth are neighbours.
struct DevicePlan {
  const int32_t *child_begin, *children;               // a child is a token of its sequence, or ~family
  const int32_t *sequence, *kind;                      // of each family
  const int32_t *batch_of, *first_token, *leaf_begin;  // of each sequence; leaf_begin: tokens of those before it
};

// Numbers of families, (family, head), and of leaves, (token, head), in the compute type C. Null where not needed.
template <class C>
struct NodeNumbers {
  C *q, *k, *v;                   // means: (family, head, channels)
  C *weight, *kappa, *f, *Z, *m;  // (family, head)
  C* local;                       // (family, head, value channels): attention on siblings, then the sum of ancestors
  C *leaf_Z, *leaf_local;         // (leaf, head), (leaf, head, value channels)
  C *Y, *mbar, *mu, *leaf_mu;     // backward, bottom-up
  C *fbar, *dq, *dk, *dv, *dkappa, *dweight;  // backward, top-down
};

template <class S>
struct HsaArgs {
  using C = typename ComputeOf<S>::Type;
  HsaProblem p;
  DevicePlan plan;
  NodeNumbers<C> n;
};

// One sequence and head, and its nodes.
template <class S>
struct Head {
  using C = typename ComputeOf<S>::Type;
  const HsaArgs<S>& a;
  int64_t head, batch, first, leaf_begin;

  __device__ Head(const HsaArgs<S>& args, int64_t family, int64_t h) : a(args), head(h) {
    const int32_t sequence = a.plan.sequence[family];
    batch = a.plan.batch_of[sequence];
    first = a.plan.first_token[sequence];
    leaf_begin = a.plan.leaf_begin[sequence];
  }
  __device__ int64_t node(int64_t family) const { return family * a.p.heads + head; }
  __device__ int64_t leaf(int64_t token) const { return (leaf_begin + token) * a.p.heads + head; }
  template <class T, class AnyView>
  __device__ T* row(const AnyView& view, int64_t token) const {
    const Rows<T> rows = rows_of<T>(view, batch, head);
    return &rows.at(first + token, 0);
  }

  __device__ C weight(int32_t child) const {
    if (child < 0) return a.n.weight[node(~child)];
    if (a.p.weights.data == nullptr) return C(1);
    return static_cast<const C*>(
        a.p.weights.data)[batch * a.p.weights.stride[0] + (first + child) * a.p.weights.stride[2]];
  }
  __device__ C kappa(int32_t child) const {
    if (child < 0) return a.n.kappa[node(~child)];
    return a.p.key_bias.data == nullptr ? C(0) : *row<const C>(a.p.key_bias, child);
  }
  // Channel c of a child's q, k or v: a leaf's own, or a family's mean.
  __device__ C value(const ConstView& view, const C* means, int channels, int32_t child, int c) const {
    if (child < 0) return means[node(~child) * channels + c];
    return static_cast<C>(row<const S>(view, child)[c * view.stride[3]]);
  }
  __device__ C q(int32_t child, int c) const { return value(a.p.q, a.n.q, a.p.head_size, child, c); }
  __device__ C k(int32_t child, int c) const { return value(a.p.k, a.n.k, a.p.head_size, child, c); }
  __device__ C v(int32_t child, int c) const { return value(a.p.v, a.n.v, a.p.value_size, child, c); }
  __device__ C Y(const ConstView& dout, int32_t child, int c) const {
    return value(dout, a.n.Y, a.p.value_size, child, c);
  }

  __device__ C dot_qk(int32_t x, int32_t y) const {
    C sum = 0;
    for (int c = 0; c < a.p.head_size; ++c) sum += q(x, c) * k(y, c);
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

inline DevicePlan device_plan(const HsaPlan& plan, const int32_t* numbers) {
  return {numbers + plan.child_begin, numbers + plan.children,    numbers + plan.sequence,  numbers + plan.kind,
          numbers + plan.batch_of,    numbers + plan.first_token, numbers + plan.leaf_begin};
}

// Places for all numbers, one after the other from `start` on; returns how many there are. `n` may be null.
template <class C>
int64_t place_numbers(const HsaProblem& p, const HsaPlan& plan, bool backward, C* start, NodeNumbers<C>* n) {
  NodeNumbers<C> none;
  NodeNumbers<C>& to = n == nullptr ? none : *n;
  to = {};
  int64_t used = 0;
  auto take = [&](C*& pointer, int64_t count) {
    pointer = start + used;
    used += (count + 3) / 4 * 4;
  };
  const int64_t nodes = plan.families * p.heads, leaves = plan.leaves * p.heads;
  const bool values = p.v.data != nullptr;
  take(to.q, nodes * p.head_size);
  take(to.k, nodes * p.head_size);
  if (values) take(to.v, nodes * p.value_size);
  for (C** pointer : {&to.weight, &to.kappa, &to.f, &to.Z, &to.m}) take(*pointer, nodes);
  take(to.leaf_Z, leaves);
  if (!backward) {
    if (values) take(to.local, nodes * p.value_size);
    if (values) take(to.leaf_local, leaves * p.value_size);
    return used;
  }
  take(to.Y, nodes * p.value_size);
  take(to.dq, nodes * p.head_size);
  take(to.dk, nodes * p.head_size);
  take(to.dv, nodes * p.value_size);
  for (C** pointer : {&to.mbar, &to.mu, &to.fbar, &to.dkappa, &to.dweight}) take(*pointer, nodes);
  take(to.leaf_mu, leaves);
  return used;
}

}  // namespace strata::cuda
