// HSA backward on CUDA, for any tree (docs/MATH.md, section 2.4), deterministic. Bottom-up once more the means and Z,
// and with them Y, mu and mbar; then top-down the gradients, a warp per child, which gathers what its siblings owe it.
#include <cmath>

#include "cuda/hsa_simt.cuh"

namespace strata::cuda {

namespace {

template <class S>
struct BackwardArgs {
  HsaArgs<S> a;
  HsaGradients g;
  long long* positions;  // (heads, kinds, places, places), in fixed point
};

template <class S>
__device__ typename ComputeOf<S>::Type mbar_of(const Head<S>& head, const ConstView& dout, int32_t child) {
  return child < 0 ? head.a.n.mbar[head.node(~child)] : head.dot_Yv(dout, child, child);
}

// mu of every child, Y and mbar of the family.
template <class S>
__global__ void __launch_bounds__(kFamilyThreads)
    hsa_mass_kernel(const __grid_constant__ BackwardArgs<S> args, int64_t first) {
  using C = typename ComputeOf<S>::Type;
  const HsaArgs<S>& a = args.a;
  constexpr int kWarps = kFamilyThreads / 32;
  const int64_t family = first + blockIdx.x;
  const Head<S> head(a, family, blockIdx.y);
  const int32_t* children = a.plan.children + a.plan.child_begin[family];
  const int size = a.plan.child_begin[family + 1] - a.plan.child_begin[family];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t node = head.node(family);
  for (int c = static_cast<int>(threadIdx.x); c < a.p.value_size; c += kFamilyThreads) {
    C sum = 0;
    for (int x = 0; x < size; ++x) {
      if (head.weight(children[x]) > 0) sum += head.Y(args.g.dout, children[x], c);
    }
    a.n.Y[node * a.p.value_size + c] = sum;
  }
  for (int x = static_cast<int>(threadIdx.x) / 32; x < size; x += kWarps) {
    const int32_t child = children[x];
    C mu = 0;
    if (head.weight(child) > 0) {
      const C Z = head.Z(child);
      for (int y = lane; y < size; y += 32) {
        const C share = y == x ? C(0) : exp_difference(head.g(family, children, x, y), Z);
        if (share != 0) mu += share * head.dot_Yv(args.g.dout, child, children[y]);
      }
      mu = warp_sum(mu);
      const C own = exp_difference(head.f(child), Z);
      if (own != 0) mu += own * mbar_of(head, args.g.dout, child);
    }
    if (lane == 0) (child < 0 ? a.n.mu[head.node(~child)] : a.n.leaf_mu[head.leaf(child)]) = mu;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  C sum = 0;
  for (int x = lane; x < size; x += 32)
    sum += children[x] < 0 ? a.n.mu[head.node(~children[x])] : a.n.leaf_mu[head.leaf(children[x])];
  sum = warp_sum(sum);
  if (lane == 0) a.n.mbar[node] = sum;
}

// What one child gets from its family: sums over its siblings and through the family's means, by a warp.
template <class S>
struct ChildGradient {
  using C = typename ComputeOf<S>::Type;
  const BackwardArgs<S>& args;
  const HsaArgs<S>& a;
  const Head<S>& head;
  int64_t family, node;
  int32_t child;
  bool root, real;  // real: the child counts
  C w, total, share, m, fbar, fbar_share, Z, mu;
  C own = 0, child_fbar = 0;                         // mass of the child on itself; what goes down to its f
  C dq[kLaneChannels] = {}, dk[kLaneChannels] = {};  // of one level after the other
  C dv[kLaneChannels] = {}, dkappa = 0, dweight = 0, level_part = 0;

  __device__ ChildGradient(const BackwardArgs<S>& b, const Head<S>& h, int64_t f, int32_t c, bool is_root)
      : args(b), a(b.a), head(h), family(f), node(h.node(f)), child(c), root(is_root) {
    w = head.weight(child);
    real = w > 0;
    total = a.n.weight[node];
    share = real ? w / total : C(0);
    m = root ? C(1) : a.n.m[node];
    fbar = !root ? a.n.fbar[node]
           : args.g.dscore == nullptr
               ? C(0)
               : static_cast<const C*>(args.g.dscore)[a.plan.sequence[family] * a.p.heads + head.head];
    fbar_share = fbar * share;
    Z = head.Z(child);
    mu = mu_of(child);
    if (!real) return;
    own = exp_difference(head.f(child), Z);
    child_fbar = own * fma(fbar, share, m * (mbar_of(head, args.g.dout, child) - mu));
  }
  __device__ C mu_of(int32_t x) const { return x < 0 ? a.n.mu[head.node(~x)] : a.n.leaf_mu[head.leaf(x)]; }

  // Siblings, 32 at a time. x: the child's place in the family. With level 0 also all that has no level.
  __device__ void add_siblings(const int32_t* children, int size, int x, int level) {
    const C scale = static_cast<C>(a.p.scale) * head.level_weight(level);
    const ConstView& dout = args.g.dout;
    for (int y0 = 0; y0 < size && real; y0 += 32) {
      const int y = y0 + lane_of_thread();
      C forth = 0, back = 0, back_mass = 0;  // forth: how the child attends to the sibling; back: the other way round
      if (y < size && y != x && head.weight(children[y]) > 0) {
        const int32_t other = children[y];
        const C p_forth = exp_difference(head.g(family, children, x, y), Z);
        const C p_back = exp_difference(head.g(family, children, y, x), head.Z(other));
        if (p_forth != 0) forth = p_forth * fma(m, head.dot_Yv(dout, child, other) - mu, fbar_share);
        if (p_back != 0) {
          back = p_back * fma(m, head.dot_Yv(dout, other, child) - mu_of(other), fbar * head.weight(other) / total);
          back_mass = m * p_back;
        }
        if (a.later.level_parts != nullptr && forth != 0) level_part += forth * head.dot_qk(child, other, level);
        const int64_t at = head.position(family, x, y);
        if (level == 0 && args.positions != nullptr && at >= 0 && forth != 0)
          add_fixed_point(args.positions + at, forth);
      }
      if (level == 0) dkappa += back;
      for (int z = 0; z < 32 && y0 + z < size; ++z) {
        const C to = scale * __shfl_sync(~0u, forth, z), from = scale * __shfl_sync(~0u, back, z),
                mass = __shfl_sync(~0u, back_mass, z);
        if (to == 0 && from == 0 && mass == 0) continue;
        const int32_t other = children[y0 + z];
        each_lane_channel(a.p.head_size, [&](int i, int c) {
          dq[i] += to * head.k(other, level, c);
          dk[i] += from * head.q(other, level, c);
        });
        if (level > 0) continue;
        each_lane_channel(a.p.value_size, [&](int i, int c) { dv[i] += mass * head.Y(dout, other, c); });
      }
    }
  }

  // The child's part of the gradient of the family's means, which its weight has a part in, too.
  __device__ void add_means(int level) {
    if (root || !real) return;
    C means = 0;
    const int64_t above = head.level_row(node, level);
    each_lane_channel(a.p.head_size, [&](int i, int c) {
      const C aq = a.n.dq[above + c], ak = a.n.dk[above + c];
      dq[i] += share * aq;
      dk[i] += share * ak;
      means += aq * (head.q(child, level, c) - a.n.q[above + c]) + ak * (head.k(child, level, c) - a.n.k[above + c]);
    });
    if (level == 0) {
      each_lane_channel(a.p.value_size, [&](int i, int c) {
        const int64_t at = node * a.p.value_size + c;
        dv[i] += share * a.n.dv[at];
        means += a.n.dv[at] * (head.v(child, c) - a.n.v[at]);
      });
    }
    dweight += warp_sum(means) / total;
  }
  // What the child's own numbers get from the family's.
  __device__ void add_family() {
    dkappa = warp_sum(dkappa);
    if (!real) return;
    dweight += dkappa / w + fbar * (Z - a.n.f[node]) / total;
    if (root) return;
    dweight += a.n.dkappa[node] * (head.kappa(child) - a.n.kappa[node]) / total + a.n.dweight[node];
    dkappa += share * a.n.dkappa[node];
  }

  __device__ void store_level(int level, int64_t child_index) {
    if (child < 0) {
      const int64_t to = head.level_row(head.node(~child), level);
      each_lane_channel(a.p.head_size, [&](int i, int c) { a.n.dq[to + c] = dq[i], a.n.dk[to + c] = dk[i]; });
    } else {
      store_leaf_level(level);
    }
    if (a.later.level_parts != nullptr) {
      C part = warp_sum(level_part);
      if (child >= 0 && real && child_fbar != 0) part += child_fbar * own_product(level);
      if (lane_of_thread() == 0)
        a.later.level_parts[(child_index * a.p.heads + head.head) * a.p.levels + level] =
            static_cast<C>(a.p.scale) * part;
    }
    level_part = 0;
    for (int i = 0; i < kLaneChannels; ++i) dq[i] = dk[i] = 0;
  }
  __device__ C own_product(int level) const {
    C sum = 0;
    each_lane_channel(a.p.head_size, [&](int, int c) { sum += head.q(child, level, c) * head.k(child, level, c); });
    return warp_sum(sum);
  }
  __device__ void store_leaf_level(int level) const {
    const C own_score = real ? static_cast<C>(a.p.scale) * head.level_weight(level) * child_fbar : C(0);
    const HsaGradients& g = args.g;
    C *const later_q = a.later.dq[level], *const later_k = a.later.dk[level];
    S* const to_q = head.template query_row<S>(g.dq[level], child, level);
    S* const to_k = head.template key_row<S>(g.dk[level], child, level);
    const int64_t at = head.leaf(child) * a.p.head_size;
    each_lane_channel(a.p.head_size, [&](int i, int c) {
      const C x = dq[i] + (own_score != 0 ? own_score * head.k(child, level, c) : C(0));
      const C y = dk[i] + (own_score != 0 ? own_score * head.q(child, level, c) : C(0));
      if (later_q != nullptr) {
        later_q[at + c] = x;
      } else {
        to_q[c * g.dq[level].stride[3]] = static_cast<S>(x);
      }
      if (later_k != nullptr) {
        later_k[at + c] = y;
      } else {
        to_k[c * g.dk[level].stride[3]] = static_cast<S>(y);
      }
    });
  }
  __device__ void store_node() const {
    const int64_t to = head.node(~child);
    each_lane_channel(a.p.value_size, [&](int i, int c) { a.n.dv[to * a.p.value_size + c] = dv[i]; });
    if (lane_of_thread() != 0) return;
    a.n.m[to] = m * own;
    a.n.fbar[to] = child_fbar;
    a.n.dkappa[to] = dkappa;
    a.n.dweight[to] = dweight;
  }
  __device__ void store_leaf() const {
    const HsaGradients& g = args.g;
    S* const to_v = head.template key_row<S>(g.dv, child);
    each_lane_channel(a.p.value_size, [&](int i, int c) {
      const C x = dv[i] + (real ? m * own * head.Y(g.dout, child, c) : C(0));
      if (a.later.dv != nullptr) {
        a.later.dv[head.leaf(child) * a.p.value_size + c] = x;
      } else {
        to_v[c * g.dv.stride[3]] = static_cast<S>(x);
      }
    });
    if (lane_of_thread() != 0) return;
    const C kappa = real ? dkappa + child_fbar : C(0), weight = real ? dweight + child_fbar / w : C(0);
    if (a.later.dkappa != nullptr) {
      a.later.dkappa[head.leaf(child)] = kappa;
      a.later.dweight[head.leaf(child)] = weight;
      return;
    }
    if (g.dkey_bias.data != nullptr) *head.template key_row<C>(g.dkey_bias, child) = kappa;
    if (g.dweights.data != nullptr) *head.template key_row<C>(g.dweights, child) = weight;
  }
};

// What a family hands down, and what siblings owe each other: a warp per child.
template <class S>
__global__ void __launch_bounds__(kFamilyThreads)
    hsa_gradient_kernel(const __grid_constant__ BackwardArgs<S> args, int64_t first, bool root) {
  const PlanView& plan = args.a.plan;
  const int64_t family = first + blockIdx.x;
  const Head<S> head(args.a, family, blockIdx.y);
  const int32_t* children = plan.children + plan.child_begin[family];
  const int size = plan.child_begin[family + 1] - plan.child_begin[family];
  for (int x = warp_of_thread(); x < size; x += kFamilyThreads / 32) {
    ChildGradient<S> gradient(args, head, family, children[x], root);
    for (int level = 0; level < args.a.p.levels; ++level) {
      gradient.add_siblings(children, size, x, level);
      gradient.add_means(level);
      gradient.store_level(level, plan.child_begin[family] + x);
    }
    gradient.add_family();
    if (children[x] < 0) {
      gradient.store_node();
    } else {
      gradient.store_leaf();
    }
  }
}

template <class S>
cudaError_t backward(const HsaCall& call, const HsaGradients& g) {
  using C = typename ComputeOf<S>::Type;
  const HsaPlan& plan = call.plan;
  const FixedPointTable positions = position_gradients(call, g);
  const BackwardArgs<S> args{hsa_args<S>(call, &g, false), g, positions.data};
  if (const cudaError_t e = positions.clear(call.stream); e != cudaSuccess) return e;
  for (int64_t depth = depths_of(plan) - 1; depth >= 0; --depth) {
    launch_families(args.a, plan, depth, call.stream);
    hsa_mass_kernel<S>
        <<<family_grid(args.a, plan, depth), kFamilyThreads, 0, call.stream>>>(args, plan.depth_begin[depth]);
  }
  for (int64_t depth = 0; depth < depths_of(plan); ++depth)
    hsa_gradient_kernel<S><<<family_grid(args.a, plan, depth), kFamilyThreads, 0, call.stream>>>(
        args, plan.depth_begin[depth], depth == 0);
  if (const cudaError_t e = hsa_sum_later(call, args.a, g, plan_children(plan)); e != cudaSuccess) return e;
  return positions.convert(static_cast<C*>(g.dpositions), call.stream);
}

}  // namespace

cudaError_t hsa_backward_simt(const HsaCall& call, const HsaGradients& g) {
  return with_storage(call.p.dtype, [&](auto storage) { return backward<decltype(storage)>(call, g); });
}

}  // namespace strata::cuda
