// HSA forward on CUDA, for any tree: one block per family and head, depth by depth. Bottom-up every family is a small
// attention of its own (means, Z, a local output); top-down y = acc(A) + m(A) local. See docs/MATH.md, section 2.3.
#include <cmath>

#include "cuda/hsa_simt.cuh"

namespace strata::cuda {

namespace {

// acc(c) = acc(A) + m(A) local(c), m(c) = m(A) exp(f(c) - Z(c)), and y of the leaves.
template <class S>
__global__ void __launch_bounds__(kFamilyThreads)
    hsa_spread_kernel(const __grid_constant__ HsaArgs<S> a, const __grid_constant__ View out, int64_t first,
                      bool root) {
  using C = typename ComputeOf<S>::Type;
  const int64_t family = first + blockIdx.x;
  const Head<S> head(a, family, blockIdx.y);
  const int32_t* children = a.plan.children + a.plan.child_begin[family];
  const int size = a.plan.child_begin[family + 1] - a.plan.child_begin[family], width = a.p.value_size;
  const int64_t node = head.node(family);
  const C m = root ? C(1) : a.n.m[node];
  for (int at = static_cast<int>(threadIdx.x); at < size * width; at += kFamilyThreads) {
    const int32_t child = children[at / width];
    const int c = at % width;
    const C above = root ? C(0) : a.n.local[node * width + c];
    if (child < 0) {
      C& local = a.n.local[head.node(~child) * width + c];
      local = above + m * local;
      if (c == 0) a.n.m[head.node(~child)] = m * exp_difference(head.f(child), head.Z(child));
      continue;
    }
    const bool real = head.weight(child) > 0;
    head.template query_row<S>(out, child)[c * out.stride[3]] =
        static_cast<S>(real ? above + m * a.n.leaf_local[head.leaf(child) * width + c] : C(0));
  }
}

template <class S>
cudaError_t forward(const HsaCall& call, const HsaOutputs& o) {
  const HsaPlan& plan = call.plan;
  const HsaArgs<S> a = hsa_args<S>(call, nullptr, false);
  for (int64_t depth = depths_of(plan) - 1; depth >= 0; --depth) launch_families(a, plan, depth, call.stream);
  for (int64_t depth = 0; depth < depths_of(plan) && call.p.v.data != nullptr; ++depth)
    hsa_spread_kernel<S><<<family_grid(a, plan, depth), kFamilyThreads, 0, call.stream>>>(
        a, o.out, plan.depth_begin[depth], depth == 0);
  return store_score(call, a, o);
}

}  // namespace

cudaError_t hsa_forward_simt(const HsaCall& call, const HsaOutputs& o) {
  return with_storage(call.p.dtype, [&](auto storage) { return forward<decltype(storage)>(call, o); });
}

}  // namespace strata::cuda
