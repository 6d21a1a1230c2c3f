// What the backward passes of HSA sum afterwards, in a fixed order: the gradients of coarse rows over their tokens,
// those of keys over the query heads that share them, and those of the level weights over all families.
#include "cuda/hsa_args.h"
#include "cuda/launch.cuh"
#include "cuda/simt.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 256;

// The sequence of a leaf, and its token there.
struct LeafPlace {
  int32_t sequence;
  int64_t token, end;  // end: tokens of the sequence
};
__device__ LeafPlace place_of(const PlanView& plan, int64_t sequences, int64_t leaves, int64_t leaf) {
  int64_t low = 0, high = sequences;  // the last sequence that begins at or before the leaf
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (plan.leaf_begin[middle] <= leaf ? low : high) = middle;
  }
  const int64_t end = low + 1 < sequences ? plan.leaf_begin[low + 1] : leaves;
  return {static_cast<int32_t>(low), leaf - plan.leaf_begin[low], end - plan.leaf_begin[low]};
}

// One gradient: rows of a level, summed over their tokens and over `group` heads.
template <class C>
struct LaterRows {
  const C* from;  // (leaf, head, channels)
  View to;
  int level, channels;
  int64_t heads, group, leaves;
};

template <class S, class C>
__global__ void __launch_bounds__(kThreads)
    hsa_later_rows_kernel(const __grid_constant__ LaterRows<C> rows, PlanView plan, int64_t sequences) {
  const int64_t out_heads = rows.heads / rows.group;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t leaf = item / rows.channels / out_heads;
  if (leaf >= rows.leaves) return;
  const LeafPlace place = place_of(plan, sequences, rows.leaves, leaf);
  if (place.token % (int64_t{1} << rows.level) != 0) return;
  const int64_t head = item / rows.channels % out_heads, c = item % rows.channels;
  const int64_t end = min(place.end, place.token + (int64_t{1} << rows.level));
  C sum = 0;
  for (int64_t t = 0; t < end - place.token; ++t) {
    for (int64_t h = head * rows.group; h < (head + 1) * rows.group; ++h)
      sum += rows.from[((leaf + t) * rows.heads + h) * rows.channels + c];
  }
  const int64_t row = plan.first_row[rows.level * sequences + place.sequence] + (place.token >> rows.level);
  padded_rows_of<S>(rows.to, plan.batch_of[place.sequence], head).at(row, c) = static_cast<S>(sum);
}

template <class C>
__global__ void __launch_bounds__(kThreads)
    hsa_level_kernel(const C* parts, C* to, int64_t heads, int64_t levels, int64_t count) {
  __shared__ C sums[kThreads / 32];
  const int64_t column = blockIdx.x;  // head and level
  C sum = 0;
  for (int64_t at = threadIdx.x; at < count; at += kThreads) sum += parts[at * heads * levels + column];
  sum = warp_sum(sum);
  if (lane_of_thread() == 0) sums[warp_of_thread()] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  C total = 0;
  for (const C part : sums) total += part;
  to[column] = total;
}

}  // namespace

template <class S>
cudaError_t hsa_sum_later(const HsaCall& call, const HsaArgs<S>& a, const HsaGradients& g, int64_t parts) {
  using C = typename ComputeOf<S>::Type;
  const HsaProblem& p = call.p;
  auto sum = [&](auto storage, const C* from, const View& to, int level, int channels, int64_t group) {
    if (from == nullptr || to.data == nullptr || call.plan.leaves == 0) return;
    const LaterRows<C> rows{from, to, level, channels, p.heads, group, call.plan.leaves};
    const int64_t items = call.plan.leaves * (p.heads / group) * channels;
    hsa_later_rows_kernel<decltype(storage), C>
        <<<blocks_for(items, kThreads), kThreads, 0, call.stream>>>(rows, a.plan, p.sequences);
  };
  const int64_t group = p.heads / p.key_heads;
  for (int l = 0; l < p.levels; ++l) {
    sum(S{}, a.later.dq[l], g.dq[l], l, p.head_size, 1);
    sum(S{}, a.later.dk[l], g.dk[l], l, p.head_size, group);
  }
  sum(S{}, a.later.dv, g.dv, 0, p.value_size, group);
  sum(C{}, a.later.dkappa, g.dkey_bias, 0, 1, group);
  sum(C{}, a.later.dweight, g.dweights, 0, 1, group);
  if (a.later.level_parts != nullptr)
    hsa_level_kernel<C><<<static_cast<unsigned>(p.heads * p.levels), kThreads, 0, call.stream>>>(
        a.later.level_parts, static_cast<C*>(g.dlevel_weights), p.heads, p.levels, parts);
  return cudaGetLastError();
}
template cudaError_t hsa_sum_later(const HsaCall&, const HsaArgs<float>&, const HsaGradients&, int64_t);
template cudaError_t hsa_sum_later(const HsaCall&, const HsaArgs<double>&, const HsaGradients&, int64_t);
template cudaError_t hsa_sum_later(const HsaCall&, const HsaArgs<__nv_bfloat16>&, const HsaGradients&, int64_t);
template cudaError_t hsa_sum_later(const HsaCall&, const HsaArgs<__half>&, const HsaGradients&, int64_t);

}  // namespace strata::cuda
