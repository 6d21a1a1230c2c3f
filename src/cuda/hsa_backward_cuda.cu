// HSA backward on CUDA, for any tree (docs/MATH.md, section 2.4), deterministic. Bottom-up once more the means and Z,
// and with them Y, mu and mbar; then top-down the gradients, a warp per child, which gathers what its siblings owe it.
#include <cmath>

#include "cuda/device.h"
#include "cuda/hsa_cuda_kernels.h"
#include "cuda/hsa_families.cuh"

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
__global__ void __launch_bounds__(kHsaThreads)
    hsa_mass_kernel(const __grid_constant__ BackwardArgs<S> args, int64_t first) {
  using C = typename ComputeOf<S>::Type;
  const HsaArgs<S>& a = args.a;
  constexpr int kWarps = kHsaThreads / 32;
  const int64_t family = first + blockIdx.x;
  const Head<S> head(a, family, blockIdx.y);
  const int32_t* children = a.plan.children + a.plan.child_begin[family];
  const int size = a.plan.child_begin[family + 1] - a.plan.child_begin[family];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t node = head.node(family);
  for (int c = static_cast<int>(threadIdx.x); c < a.p.value_size; c += kHsaThreads) {
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

// What a family hands down, and what siblings owe each other.
template <class S>
__global__ void __launch_bounds__(kHsaThreads)
    hsa_gradient_kernel(const __grid_constant__ BackwardArgs<S> args, int64_t first, bool root) {
  using C = typename ComputeOf<S>::Type;
  constexpr int kPieces = kMaxHeadSize / 32, kWarps = kHsaThreads / 32;
  const HsaArgs<S>& a = args.a;
  const HsaProblem& p = a.p;
  const int64_t family = first + blockIdx.x;
  const Head<S> head(a, family, blockIdx.y);
  const int32_t* children = a.plan.children + a.plan.child_begin[family];
  const int size = a.plan.child_begin[family + 1] - a.plan.child_begin[family];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t node = head.node(family);
  const C scale = static_cast<C>(p.scale), total = a.n.weight[node];
  const C m = root ? C(1) : a.n.m[node];
  const C fbar = !root ? a.n.fbar[node]
                 : args.g.dscore == nullptr
                     ? C(0)
                     : static_cast<const C*>(args.g.dscore)[a.plan.sequence[family] * p.heads + head.head];
  auto mu_of = [&](int32_t child) { return child < 0 ? a.n.mu[head.node(~child)] : a.n.leaf_mu[head.leaf(child)]; };
  for (int x = static_cast<int>(threadIdx.x) / 32; x < size; x += kWarps) {
    const int32_t child = children[x];
    const C w = head.weight(child);
    const bool real = w > 0;
    const C share = real ? w / total : C(0), Z = head.Z(child), mu = mu_of(child);
    C dq[kPieces] = {}, dk[kPieces] = {}, dv[kPieces] = {}, dkappa = 0, dweight = 0;
    for (int y0 = 0; y0 < size && real; y0 += 32) {
      const int y = y0 + lane;
      // forth: how the child attends to the sibling; back: the other way round
      C forth = 0, back = 0, back_mass = 0;
      if (y < size && y != x && head.weight(children[y]) > 0) {
        const int32_t other = children[y];
        const C p_forth = exp_difference(head.g(family, children, x, y), Z);
        const C p_back = exp_difference(head.g(family, children, y, x), head.Z(other));
        if (p_forth != 0) forth = p_forth * (m * (head.dot_Yv(args.g.dout, child, other) - mu) + fbar * share);
        if (p_back != 0) {
          back = p_back *
                 (m * (head.dot_Yv(args.g.dout, other, child) - mu_of(other)) + fbar * head.weight(other) / total);
          back_mass = m * p_back;
        }
        const int64_t at = head.position(family, x, y);
        if (args.positions != nullptr && at >= 0 && forth != 0) add_fixed_point(args.positions + at, forth);
      }
      dkappa += back;
      for (int z = 0; z < 32 && y0 + z < size; ++z) {
        const C to = scale * __shfl_sync(~0u, forth, z), from = scale * __shfl_sync(~0u, back, z),
                mass = __shfl_sync(~0u, back_mass, z);
        if (to == 0 && from == 0 && mass == 0) continue;
        const int32_t other = children[y0 + z];
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const int c = lane + 32 * piece;
          if (c < p.head_size) {
            dq[piece] += to * head.k(other, c);
            dk[piece] += from * head.q(other, c);
          }
          if (c < p.value_size) dv[piece] += mass * head.Y(args.g.dout, other, c);
        }
      }
    }
    dkappa = warp_sum(dkappa);
    if (real) dweight = dkappa / w;
    // What the family's means owe to the child.
    C means = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = lane + 32 * piece;
      if (root || !real) break;
      if (c < p.head_size) {
        const C aq = a.n.dq[node * p.head_size + c], ak = a.n.dk[node * p.head_size + c];
        dq[piece] += share * aq;
        dk[piece] += share * ak;
        means += aq * (head.q(child, c) - a.n.q[node * p.head_size + c]) +
                 ak * (head.k(child, c) - a.n.k[node * p.head_size + c]);
      }
      if (c < p.value_size) {
        const C av = a.n.dv[node * p.value_size + c];
        dv[piece] += share * av;
        means += av * (head.v(child, c) - a.n.v[node * p.value_size + c]);
      }
    }
    means = warp_sum(means);
    const C own = real ? exp_difference(head.f(child), Z) : C(0);
    const C child_fbar = real ? own * (m * (mbar_of(head, args.g.dout, child) - mu) + fbar * share) : C(0);
    if (real) {
      means += fbar * (Z - a.n.f[node]);
      if (!root) {
        dkappa += share * a.n.dkappa[node];
        means += a.n.dkappa[node] * (head.kappa(child) - a.n.kappa[node]);
        dweight += a.n.dweight[node];
      }
      dweight += means / total;
    }
    if (child < 0) {
      const int64_t to = head.node(~child);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int c = lane + 32 * piece;
        if (c < p.head_size) a.n.dq[to * p.head_size + c] = dq[piece], a.n.dk[to * p.head_size + c] = dk[piece];
        if (c < p.value_size) a.n.dv[to * p.value_size + c] = dv[piece];
      }
      if (lane == 0) {
        a.n.m[to] = m * own;
        a.n.fbar[to] = child_fbar;
        a.n.dkappa[to] = dkappa;
        a.n.dweight[to] = dweight;
      }
      continue;
    }
    S* const to_q = head.template row<S>(args.g.dq, child);
    S* const to_k = head.template row<S>(args.g.dk, child);
    S* const to_v = head.template row<S>(args.g.dv, child);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = lane + 32 * piece;
      if (c < p.head_size) {
        const C q_add = real ? scale * child_fbar * head.k(child, c) : C(0);
        const C k_add = real ? scale * child_fbar * head.q(child, c) : C(0);
        to_q[c * args.g.dq.stride[3]] = static_cast<S>(dq[piece] + q_add);
        to_k[c * args.g.dk.stride[3]] = static_cast<S>(dk[piece] + k_add);
      }
      if (c < p.value_size)
        to_v[c * args.g.dv.stride[3]] =
            static_cast<S>(dv[piece] + (real ? m * own * head.Y(args.g.dout, child, c) : C(0)));
    }
    if (lane != 0) continue;
    if (args.g.dkey_bias.data != nullptr)
      *head.template row<C>(args.g.dkey_bias, child) = real ? dkappa + child_fbar : C(0);
    if (args.g.dweights.data != nullptr)
      *head.template row<C>(args.g.dweights, child) = real ? dweight + child_fbar / w : C(0);
  }
}

template <class S>
cudaError_t backward(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const HsaGradients& g,
                     void* workspace, cudaStream_t stream) {
  using C = typename ComputeOf<S>::Type;
  const int64_t entries = p.heads * p.kinds * p.places * p.places;
  const bool positions = g.dpositions != nullptr && entries > 0;
  BackwardArgs<S> args{
      {p, device_plan(plan, numbers), {}}, g, positions ? static_cast<long long*>(workspace) : nullptr};
  C* start = static_cast<C*>(workspace) + (positions ? entries * 8 / sizeof(C) : 0);
  place_numbers(p, plan, true, start, &args.a.n);
  if (positions) {
    if (const cudaError_t e = cudaMemsetAsync(workspace, 0, entries * 8, stream); e != cudaSuccess) return e;
  }
  const auto depths = static_cast<int64_t>(plan.depth_begin.size()) - 1;
  auto grid = [&](int64_t depth) {
    return dim3(static_cast<unsigned>(plan.depth_begin[depth + 1] - plan.depth_begin[depth]),
                static_cast<unsigned>(p.heads));
  };
  bool small = false;
  if constexpr (sizeof(S) == 2) {
    small = allowed_kernels() != Kernels::kPlain && hsa_small_backward_fits(p, plan, g);
    if (small) {
      if (const cudaError_t e = hsa_small_backward<S>(args.a, plan, g, args.positions, stream); e != cudaSuccess)
        return e;
    }
  }
  for (int64_t depth = depths - 1; depth >= 0 && !small; --depth) {
    hsa_means_kernel<S><<<grid(depth), kHsaThreads, 0, stream>>>(args.a, plan.depth_begin[depth]);
    hsa_family_kernel<S><<<grid(depth), kHsaThreads, 0, stream>>>(args.a, plan.depth_begin[depth]);
    hsa_mass_kernel<S><<<grid(depth), kHsaThreads, 0, stream>>>(args, plan.depth_begin[depth]);
  }
  for (int64_t depth = 0; depth < depths && !small; ++depth)
    hsa_gradient_kernel<S><<<grid(depth), kHsaThreads, 0, stream>>>(args, plan.depth_begin[depth], depth == 0);
  if (positions)
    from_fixed_point<C>
        <<<blocks_for(entries, 128), 128, 0, stream>>>(args.positions, static_cast<C*>(g.dpositions), entries);
  return cudaGetLastError();
}

}  // namespace

cudaError_t hsa_backward_any_tree(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers,
                                  const HsaGradients& g, void* workspace, cudaStream_t stream) {
  return with_storage(
      p.dtype, [&](auto storage) { return backward<decltype(storage)>(p, plan, numbers, g, workspace, stream); });
}

size_t hsa_backward_workspace(const HsaProblem& p, const HsaPlan& plan) {
  const size_t positions = p.positions == nullptr ? 0 : 8 * p.heads * p.kinds * p.places * p.places;
  return positions + (p.dtype == DType::kFloat64
                          ? sizeof(double) * place_numbers<double>(p, plan, true, nullptr, nullptr)
                          : sizeof(float) * place_numbers<float>(p, plan, true, nullptr, nullptr));
}

}  // namespace strata::cuda
