// HSA forward on CUDA, for any tree: one block per family and head, depth by depth. Bottom-up every family is a small
// attention of its own (means, Z, a local output); top-down y = acc(A) + m(A) local. See docs/MATH.md, section 2.3.
#include <cmath>

#include "cuda/device.h"
#include "cuda/hsa_cuda_kernels.h"
#include "cuda/hsa_families.cuh"

namespace strata::cuda {

namespace {

// acc(c) = acc(A) + m(A) local(c), m(c) = m(A) exp(f(c) - Z(c)), and y of the leaves.
template <class S>
__global__ void __launch_bounds__(kHsaThreads)
    hsa_spread_kernel(const __grid_constant__ HsaArgs<S> a, const __grid_constant__ View out, int64_t first,
                      bool root) {
  using C = typename ComputeOf<S>::Type;
  const int64_t family = first + blockIdx.x;
  const Head<S> head(a, family, blockIdx.y);
  const int32_t* children = a.plan.children + a.plan.child_begin[family];
  const int size = a.plan.child_begin[family + 1] - a.plan.child_begin[family], width = a.p.value_size;
  const int64_t node = head.node(family);
  const C m = root ? C(1) : a.n.m[node];
  for (int at = static_cast<int>(threadIdx.x); at < size * width; at += kHsaThreads) {
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
    head.template row<S>(out, child)[c * out.stride[3]] =
        static_cast<S>(real ? above + m * a.n.leaf_local[head.leaf(child) * width + c] : C(0));
  }
}

template <class C>
__global__ void hsa_score_kernel(const C* f, C* score, int64_t sequences, int64_t heads, const int32_t* roots) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= sequences * heads) return;
  const int32_t root = roots[at / heads];
  score[at] = root < 0 ? -static_cast<C>(INFINITY) : f[root * heads + at % heads];
}

template <class S>
cudaError_t forward(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const HsaOutputs& o,
                    void* workspace, cudaStream_t stream) {
  using C = typename ComputeOf<S>::Type;
  HsaArgs<S> a{p, device_plan(plan, numbers), {}};
  place_numbers(p, plan, false, static_cast<C*>(workspace), &a.n);
  const auto heads = static_cast<unsigned>(p.heads);
  const auto depths = static_cast<int64_t>(plan.depth_begin.size()) - 1;
  auto grid = [&](int64_t depth) {
    return dim3(static_cast<unsigned>(plan.depth_begin[depth + 1] - plan.depth_begin[depth]), heads);
  };
  auto store_score = [&] {
    if (o.score != nullptr && p.sequences > 0)
      hsa_score_kernel<C><<<blocks_for(p.sequences * p.heads, 128), 128, 0, stream>>>(
          a.n.f, static_cast<C*>(o.score), p.sequences, p.heads, numbers + plan.roots);
    return cudaGetLastError();
  };
  if constexpr (sizeof(S) == 2) {
    if (allowed_kernels() != Kernels::kPlain && hsa_families_are_small(p, plan, o.out)) {
      if (const cudaError_t e = hsa_small_forward<S>(a, plan, o, stream); e != cudaSuccess) return e;
      return store_score();
    }
  }
  for (int64_t depth = depths - 1; depth >= 0; --depth) {
    hsa_means_kernel<S><<<grid(depth), kHsaThreads, 0, stream>>>(a, plan.depth_begin[depth]);
    hsa_family_kernel<S><<<grid(depth), kHsaThreads, 0, stream>>>(a, plan.depth_begin[depth]);
  }
  for (int64_t depth = 0; depth < depths && p.v.data != nullptr; ++depth)
    hsa_spread_kernel<S><<<grid(depth), kHsaThreads, 0, stream>>>(a, o.out, plan.depth_begin[depth], depth == 0);
  return store_score();
}

}  // namespace

cudaError_t hsa_forward_any_tree(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const HsaOutputs& o,
                                 void* workspace, cudaStream_t stream) {
  return with_storage(p.dtype,
                      [&](auto storage) { return forward<decltype(storage)>(p, plan, numbers, o, workspace, stream); });
}

size_t hsa_forward_workspace(const HsaProblem& p, const HsaPlan& plan) {
  return p.dtype == DType::kFloat64 ? sizeof(double) * place_numbers<double>(p, plan, false, nullptr, nullptr)
                                    : sizeof(float) * place_numbers<float>(p, plan, false, nullptr, nullptr);
}

}  // namespace strata::cuda
