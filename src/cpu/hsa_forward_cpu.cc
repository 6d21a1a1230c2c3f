// HSA forward (docs/MATH.md, section 2.3). Bottom-up, each family is a small attention of its own: its rows give Z and
// a local output, its children's Z give f of the family. Top-down, y = acc(A) + m(A) * local. A work item is one
// sequence and head; if there are fewer of them than threads, the families of each depth are the items. The result of a
// family does not depend on this choice.
#include "cpu/hsa_cpu_kernels.h"
#include "cpu/hsa_family.h"

namespace strata::STRATA_ISA {
namespace {

template <class T>
struct HsaForwardSpace {
  // Memory of the sequence comes from `shared`, memory of the thread from `own`. Two spaces with the same shared memory
  // use the same nodes.
  HsaForwardSpace(const HsaProblem& p, int64_t families, int64_t tokens, Arena& shared, Arena& own)
      : nodes(p, families, shared),
        tile(p, own),
        local(shared.take<T>(families * nodes.value_width)),
        leaf_local(shared.take<T>(tokens * p.value_size)),
        depths(shared.take<int32_t>(families + 1)),
        acc(own.take<T>(kTile * nodes.value_width)) {}

  Nodes<T> nodes;
  FamilyTile<T> tile;
  T* local;       // (families, value_width): a node's attention on its siblings; then acc(node)
  T* leaf_local;  // (tokens, value_size): used if the output cannot hold it
  int32_t* depths;
  T* acc;  // (kTile, value_width): the tile's sums
};

// Where the local output of token t goes: the output itself when it stores T side by side.
template <class S, class T>
Rows<T> leaf_rows(const HsaHead<S>& head, const HsaOutputs& outputs, T* fallback) {
  if constexpr (sizeof(S) == sizeof(T)) {
    const Rows<S> out = head.template leaves<S>(outputs.out, head.h);
    if (out.channel_stride == 1) return out;
  }
  return {fallback, head.p.value_size, 1};
}

template <class S, class T>
void forward_family(const HsaHead<S>& head, int64_t family, Rows<T> leaf_out, HsaForwardSpace<T>& space) {
  const HsaProblem& p = head.p;
  Nodes<T>& nodes = space.nodes;
  FamilyTile<T>& tile = space.tile;
  const int32_t* children = head.tree.children + head.tree.child_begin[family];
  const int64_t size = head.tree.child_begin[family + 1] - head.tree.child_begin[family];
  const bool with_values = head.v.data != nullptr;
  family_means(head, nodes, family, tile);
  prefetch_queries(head, family + 1);
  if (with_values) prefetch_rows<1>(head.tree, leaf_out, p.value_size, family);
  const T total = nodes.weight[family];
  T f = 0;
  for (int64_t i0 = 0; i0 < size; i0 += kTile) {
    const int64_t nq = min(kTile, size - i0);
    const int64_t lanes = round_up(nq, kLanes<T>);
    const LevelAxis queries = child_axis(children + i0, nq, p.levels);
    DenseRows<T> q[kMaxLevels];
    load_child_queries(head, nodes, children + i0, queries, tile, q);
    start_softmax(lanes, tile.peak, tile.sum);
    if (with_values) memset(space.acc, 0, sizeof(T) * nq * nodes.value_width);
    for (int64_t j0 = 0; j0 < (p.causal ? i0 + nq : size); j0 += kTile) {
      const int64_t nk = min(kTile, size - j0);
      const FamilyPair<T> pair = family_pair(head, nodes, children, i0, queries, j0, nk, tile);
      family_scores(head, nodes, family, pair, tile);
      if (j0 == 0) prefetch_keys(head, family + 1);
      T* scores = tile.scores[0];
      online_softmax(scores, nk, lanes, tile.peak, tile.sum, tile.factor);
      if (!with_values) continue;
      for (int64_t y = max(0, i0 - j0); y < min(nk, i0 + nq - j0); ++y) {  // a node's own mass goes to its children
        if (children[j0 + y] < 0) scores[y * lanes + j0 + y - i0] = 0;
      }
      const DenseRows<T> v = child_rows<S, T>(head, 0, head.v, nodes.v, nodes.value_width, p.value_size, children + j0,
                                              pair.grid.keys, tile.v_rows);
      multiply_tiles<T, Layout::kTransposed>(tile.products, {scores, lanes}, {v.data, v.step}, space.acc,
                                             nodes.value_width, nq, nodes.value_width / kLanes<T>, nk,
                                             StartRowScaled<T>{space.acc, nodes.value_width, tile.factor});
    }
    if (i0 == 0 && with_values) prefetch_rows(head.tree, head.v, p.value_size, family + 1);
    for (int64_t x = 0; x < nq; ++x) {
      const int32_t child = children[i0 + x];
      const T z = softmax_lse(tile.peak[x], tile.sum[x]);
      const T weight = child < 0 ? nodes.weight[~child] : head.weight_of(child);
      if (weight > T(0)) f += weight / total * z;
      if (child < 0) nodes.Z[~child] = z;
      if (!with_values) continue;
      const T inverse = tile.sum[x] == T(0) ? T(0) : T(1) / tile.sum[x];
      const T* from = space.acc + x * nodes.value_width;
      T* to = child < 0 ? space.local + ~child * nodes.value_width : &leaf_out.at(child, 0);
      const int64_t channels = child < 0 ? nodes.value_width : p.value_size;
      for (int64_t c = 0; c < channels; ++c) to[c] = from[c] * inverse;
    }
  }
  nodes.f[family] = total > T(0) ? f : -kInfinity<T>;
}

// y_i = acc(A) + m(A) local_i;  acc(c) = acc(A) + m(A) local_c and m(c) = m(A) exp(f(c) - Z_c).
template <class S, class T>
void spread_family(const HsaHead<S>& head, int64_t family, Rows<S> out, Rows<T> leaf_local, HsaForwardSpace<T>& space) {
  Nodes<T>& nodes = space.nodes;
  const int64_t width = nodes.value_width;
  const T m = nodes.m[family];
  const T* acc = space.local + family * width;
  for (int32_t at = head.tree.child_begin[family]; at < head.tree.child_begin[family + 1]; ++at) {
    const int32_t child = head.tree.children[at];
    if (child < 0) {
      const T f = nodes.f[~child];
      nodes.m[~child] = f == -kInfinity<T> ? T(0) : m * exp2<T>(splat((f - nodes.Z[~child]) * kLog2E<T>))[0];
      T* local = space.local + ~child * width;
      for (int64_t c = 0; c < width; ++c) local[c] = acc[c] + m * local[c];
      continue;
    }
    const bool real = head.weight_of(child) > T(0);
    const T* local = &leaf_local.at(child, 0);
    if (out.channel_stride == 1) {
      S* y = &out.at(child, 0);
      for (int64_t c = 0; c < head.p.value_size; ++c) narrow(real ? acc[c] + m * local[c] : T(0), y + c);
      continue;
    }
    for (int64_t c = 0; c < head.p.value_size; ++c) narrow(real ? acc[c] + m * local[c] : T(0), &out.at(child, c));
  }
}

// One sequence and head. `space_of(thread)` is that thread's space; they all share the nodes.
template <class S, class T, class SpaceOf>
void forward_sequence(const HsaHead<S>& head, const HsaOutputs& outputs, int threads, const SpaceOf& space_of) {
  const TreeView& tree = head.tree;
  HsaForwardSpace<T> space = space_of(0);
  T* score = static_cast<T*>(outputs.score);
  const int64_t item = head.n * head.p.heads + head.h;
  if (tree.families == 0) {
    if (score != nullptr) score[item] = -kInfinity<T>;
    return;
  }
  const int64_t depths = depth_offsets(tree, space.depths);
  const bool with_values = head.v.data != nullptr;
  Rows<T> leaf_out{space.leaf_local, head.p.value_size, 1};
  if (with_values) leaf_out = leaf_rows<S, T>(head, outputs, space.leaf_local);
  each_family(space.depths, depths, true, threads, [&](int64_t family, int thread) {
    HsaForwardSpace<T> own = space_of(thread);
    forward_family(head, family, leaf_out, own);
  });
  if (score != nullptr) score[item] = space.nodes.f[0];
  if (!with_values) return;
  const Rows<S> out = head.template leaves<S>(outputs.out, head.h);
  space.nodes.m[0] = 1;
  memset(space.local, 0, sizeof(T) * space.nodes.value_width);
  each_family(space.depths, depths, false, threads,
              [&](int64_t family, int) { spread_family(head, family, out, leaf_out, space); });
}

template <class S>
bool forward(const HsaProblem& p, const HsaOutputs& outputs, int threads) {
  using T = typename Compute<S>::Type;
  const LargestTree largest(p);
  const bool in_place = sizeof(S) == sizeof(T) && outputs.out.stride[3] == 1;
  const int64_t families = largest.families, tokens = in_place ? 0 : largest.tokens;
  Arena measure_shared(nullptr), measure_own(nullptr);
  HsaForwardSpace<T> sized(p, families, tokens, measure_shared, measure_own);
  const int64_t items = p.sequences * p.heads;
  const bool by_family = items < threads;
  const Workspace shared(measure_shared.used(), by_family ? 1 : threads), own(measure_own.used(), threads);
  if (!shared.ok() || !own.ok()) return false;
  auto run = [&](int64_t item, int shared_slice, int first_thread, int inner_threads) {
    forward_sequence<S, T>(HsaHead<S>(p, item / p.heads, item % p.heads), outputs, inner_threads, [&](int thread) {
      Arena shared_arena(shared.slice(shared_slice)), own_arena(own.slice(first_thread + thread));
      return HsaForwardSpace<T>(p, families, tokens, shared_arena, own_arena);
    });
  };
  if (by_family) {
    for (int64_t item = 0; item < items; ++item) run(item, 0, 0, threads);
  } else {
    parallel_items(items, threads, [&](int64_t item, int thread) { run(item, thread, thread, 1); });
  }
  return true;
}

}  // namespace

bool hsa_forward_cpu(const HsaProblem& p, const HsaOutputs& outputs, int threads) {
  return with_storage(p.dtype, [&](auto storage) { return forward<decltype(storage)>(p, outputs, threads); });
}

}  // namespace strata::STRATA_ISA
