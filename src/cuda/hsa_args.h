// What a call of the HSA kernels works on: the plan (src/cuda/hsa_plan.cc) and the numbers of nodes and leaves, per
// head.
#pragma once

#include <algorithm>

#include "cuda/hsa_kernels.h"
#include "cuda/storage.h"

namespace strata::cuda {

// The plan on the device. Families of all sequences are numbered by depth, so that those of one depth are neighbours.
struct PlanView {
  const int32_t *child_begin, *children;             // a child is a token of its sequence, or ~family
  const int32_t *sequence, *kind;                    // of each family
  const int32_t *batch_of, *first_row, *leaf_begin;  // of each sequence; leaf_begin: tokens of those before it
  // first_row: (level, sequence)
  const int32_t* first_tile;                // of each family, if it is wide
  const int32_t *tile_family, *tile_child;  // of each tile of a wide family: its family, and its first child
  int tile_size;
};

// Numbers of families, (family, head), and of leaves, (token, head), in the compute type C. Null where not needed.
// Heads are query heads; those of one key head have the same k and v.
template <class C>
struct NodeNumbers {
  C *q, *k;                       // means: (family, head, level, channels)
  C* v;                           // (family, head, channels)
  C *weight, *kappa, *f, *Z, *m;  // (family, head)
  C* local;                       // (family, head, value channels): attention on siblings, then the sum of ancestors
  C *leaf_Z, *leaf_local;         // (leaf, head), (leaf, head, value channels)
  C *Y, *mbar, *mu, *leaf_mu;     // backward, bottom-up
  C *fbar, *dq, *dk, *dv, *dkappa, *dweight;  // backward, top-down
};

// Gradients of leaves, (leaf, head, channels), that are summed afterwards: those of coarse rows that several families
// share, and those of keys that several query heads share. Null: the gradient is written to its place at once.
template <class C>
struct LeafGradients {
  C *dq[kMaxLevels], *dk[kMaxLevels], *dv;
  C *dkappa, *dweight;  // (leaf, head)
  C* level_parts;       // (child, head, level): parts of the gradient of the level weights; null: not wanted
};

template <class S>
struct HsaArgs {
  using C = typename ComputeOf<S>::Type;
  HsaProblem p;
  PlanView plan;
  NodeNumbers<C> n;
  LeafGradients<C> later;
  C* wide_parts;  // (tile of one depth, warp, head, WideParts): sums over the children of wide families
};

inline PlanView plan_view(const HsaPlan& plan, const int32_t* numbers) {
  return {numbers + plan.child_begin,
          numbers + plan.children,
          numbers + plan.sequence,
          numbers + plan.kind,
          numbers + plan.batch_of,
          numbers + plan.first_row,
          numbers + plan.leaf_begin,
          numbers + plan.first_tile,
          numbers + plan.tile_family,
          numbers + plan.tile_child,
          plan.tile_size};
}

// Tiles of wide families: of all of them, of one depth at most, and their warps, of 16 children each.
inline int64_t plan_tiles(const HsaPlan& plan) { return plan.tile_begin.back(); }
inline int64_t tile_warps(const HsaPlan& plan) { return plan.tile_size / 16; }
inline int64_t most_tiles(const HsaPlan& plan) {
  int64_t most = 0;
  for (size_t d = 1; d < plan.tile_begin.size(); ++d)
    most = std::max(most, plan.tile_begin[d] - plan.tile_begin[d - 1]);
  return most;
}

// Children of all families.
inline int64_t plan_children(const HsaPlan& plan) { return plan.sequence - plan.children; }

// Hands out numbers one after the other from `start` on.
template <class C>
struct Places {
  C* start;
  int64_t used = 0;
  void take(C*& pointer, int64_t count) {
    pointer = start + used;
    used += (count + 3) / 4 * 4;
  }
};

template <class C>
void place_later(const HsaProblem& p, const HsaPlan& plan, bool mma, Places<C>& places, LeafGradients<C>& to) {
  const int64_t leaves = plan.leaves * p.heads;
  const bool grouped = p.key_heads != p.heads;
  // Tensor cores sum the leaves of a coarse row themselves, where all of them are in one family.
  const bool coarse = !mma || plan.owned_levels < p.levels || plan_tiles(plan) > 0;
  for (int l = 0; l < p.levels; ++l) {
    if (l > 0 && coarse) places.take(to.dq[l], leaves * p.head_size);
    if ((l > 0 && coarse) || grouped) places.take(to.dk[l], leaves * p.head_size);
  }
  if (grouped) {
    places.take(to.dv, leaves * p.value_size);
    places.take(to.dkappa, leaves);
    places.take(to.dweight, leaves);
  }
  if (p.level_weights != nullptr) places.take(to.level_parts, plan_children(plan) * p.heads * p.levels);
}

// What a warp adds up over its children of a wide family, by channel: |c|, |c| Z, |c| kappa, mu; |c| q and |c| k of
// every level, |c| v, and, backward, Y.
struct WideParts {
  int q, k, v, Y, width;
  __host__ __device__ WideParts(const HsaProblem& p, bool backward)
      : q(4),
        k(q + p.levels * p.head_size),
        v(k + p.levels * p.head_size),
        Y(v + p.value_size),
        width(Y + (backward ? p.value_size : 0)) {}
};

// Places for all numbers; returns how many there are. `a` may be null.
template <class S>
int64_t place_numbers(const HsaProblem& p, const HsaPlan& plan, bool backward, bool mma,
                      typename ComputeOf<S>::Type* start, HsaArgs<S>* a) {
  HsaArgs<S> none{};
  auto& to = a == nullptr ? none.n : a->n;
  Places<typename ComputeOf<S>::Type> places{start};
  const int64_t nodes = plan.families * p.heads, leaves = plan.leaves * p.heads;
  const int64_t key_channels = int64_t{p.levels} * p.head_size;
  const bool values = p.v.data != nullptr;
  places.take(to.q, nodes * key_channels);
  places.take(to.k, nodes * key_channels);
  if (values) places.take(to.v, nodes * p.value_size);
  for (auto* pointer : {&to.weight, &to.kappa, &to.f, &to.Z, &to.m}) places.take(*pointer, nodes);
  places.take(to.leaf_Z, leaves);
  if (mma) {
    places.take(a == nullptr ? none.wide_parts : a->wide_parts,
                most_tiles(plan) * tile_warps(plan) * p.heads * WideParts(p, backward).width);
  }
  if (!backward) {
    if (values) places.take(to.local, nodes * p.value_size);
    if (values) places.take(to.leaf_local, leaves * p.value_size);
    return places.used;
  }
  places.take(to.Y, nodes * p.value_size);
  places.take(to.dq, nodes * key_channels);
  places.take(to.dk, nodes * key_channels);
  places.take(to.dv, nodes * p.value_size);
  for (auto* pointer : {&to.mbar, &to.mu, &to.fbar, &to.dkappa, &to.dweight}) places.take(*pointer, nodes);
  places.take(to.leaf_mu, leaves);
  place_later(p, plan, mma, places, a == nullptr ? none.later : a->later);
  return places.used;
}

// Entries of the position tables, whose gradient is summed in fixed point at the start of the workspace.
inline int64_t hsa_position_entries(const HsaProblem& p) {
  return p.positions == nullptr ? 0 : p.heads * p.kinds * p.places * p.places;
}
// Bytes of these sums, whole pieces of 16, as the numbers behind them are read 16 bytes at a time.
inline int64_t hsa_position_bytes(const HsaProblem& p) { return (hsa_position_entries(p) + 1) / 2 * 16; }

// g: null for a forward.
template <class S>
HsaArgs<S> hsa_args(const HsaCall& call, const HsaGradients* g, bool mma) {
  using C = typename ComputeOf<S>::Type;
  HsaArgs<S> a{call.p, plan_view(call.plan, call.numbers), {}, {}, nullptr};
  const int64_t before = g != nullptr ? hsa_position_bytes(call.p) / static_cast<int64_t>(sizeof(C)) : 0;
  place_numbers(call.p, call.plan, g != nullptr, mma, static_cast<C*>(call.workspace) + before, &a);
  if (g == nullptr || g->dlevel_weights == nullptr) a.later.level_parts = nullptr;
  return a;
}

// Families of one depth.
inline int64_t families_at(const HsaPlan& plan, int64_t depth) {
  return plan.depth_begin[depth + 1] - plan.depth_begin[depth];
}
inline int64_t depths_of(const HsaPlan& plan) { return static_cast<int64_t>(plan.depth_begin.size()) - 1; }

// hsa_later.cu: sums what a backward pass left in `later`; `parts`: parts of the gradient of the level weights, per
// head.
template <class S>
cudaError_t hsa_sum_later(const HsaCall& call, const HsaArgs<S>& a, const HsaGradients& g, int64_t parts);

}  // namespace strata::cuda
