// What a call of the HSA kernels works on: the plan (src/cuda/hsa_plan.cc) and the numbers of nodes and leaves, per
// head.
#pragma once

#include "cuda/hsa_kernels.h"
#include "cuda/storage.h"

namespace strata::cuda {

// The plan on the device. Families of all sequences are numbered by depth, so that those of one depth are neighbours.
struct PlanView {
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
  PlanView plan;
  NodeNumbers<C> n;
};

inline PlanView plan_view(const HsaPlan& plan, const int32_t* numbers) {
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

// Entries of the position tables, whose gradient is summed in fixed point at the start of the workspace.
inline int64_t hsa_position_entries(const HsaProblem& p) {
  return p.positions == nullptr ? 0 : p.heads * p.kinds * p.places * p.places;
}

template <class S>
HsaArgs<S> hsa_args(const HsaCall& call, bool backward) {
  using C = typename ComputeOf<S>::Type;
  HsaArgs<S> a{call.p, plan_view(call.plan, call.numbers), {}};
  const int64_t before = backward ? hsa_position_entries(call.p) * 8 / sizeof(C) : 0;
  place_numbers(call.p, call.plan, backward, static_cast<C*>(call.workspace) + before, &a.n);
  return a;
}

// Families of one depth.
inline int64_t families_at(const HsaPlan& plan, int64_t depth) {
  return plan.depth_begin[depth + 1] - plan.depth_begin[depth];
}
inline int64_t depths_of(const HsaPlan& plan) { return static_cast<int64_t>(plan.depth_begin.size()) - 1; }

}  // namespace strata::cuda
