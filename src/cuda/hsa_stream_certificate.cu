// The certificate of streaming attention on CUDA (strata/hsa_stream.h): after the means the radii of all inner nodes,
// height by height, a warp per node; then the bounds, a warp per query.
#include "cuda/hsa_stream.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

// radii: (key stream, node, levels + 1); the last is of kappa.
template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_radii_kernel(const __grid_constant__ StreamArgs<S> a, typename ComputeOf<S>::Type* radii, int height,
                        int count, int items) {
  using C = typename ComputeOf<S>::Type;
  const int item = static_cast<int>(blockIdx.x) * kWarps + warp_of_thread();
  if (item >= items) return;
  const StreamKeys<S> keys(a, item / count);
  const int n = item % count, first = n * a.p.branching, size = keys.children(height, n), width = a.p.levels + 1;
  const int64_t node = keys.node(height, n);
  for (int level = 0; level < width; ++level) {
    C radius = 0;
    for (int child = first; child < first + size; ++child) {
      if (!(keys.mass(height - 1, child) > 0)) continue;  // may hold anything
      C distance = 0;
      if (level < a.p.levels) {
        C square = 0;
        for (int c = lane_of_thread(); c < a.p.head_size; c += 32) {
          const C x = keys.k(height - 1, child, level, c) - keys.k(height, n, level, c);
          square += x * x;
        }
        distance = sqrt(warp_sum(square));
      } else {
        distance = fabs(keys.kappa(height - 1, child) - keys.kappa(height, n));
      }
      if (height > 1) distance += radii[keys.node(height - 1, child) * width + level];
      radius = fmax(radius, distance);
    }
    if (lane_of_thread() == 0) radii[node * width + level] = radius;
  }
}

template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_bound_kernel(const __grid_constant__ StreamArgs<S> a, const typename ComputeOf<S>::Type* radii,
                        typename ComputeOf<S>::Type* bound) {
  using C = typename ComputeOf<S>::Type;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_thread();
  if (item >= a.p.batch * a.p.heads * a.p.tokens) return;
  const StreamHead<S> head(a, static_cast<int>(item / a.p.tokens));
  const int i = static_cast<int>(item % a.p.tokens), width = a.p.levels + 1;
  C reach[kMaxLevels + 1] = {};  // s a_l |q^(l)|; the last is of kappa
#pragma unroll
  for (int level = 0; level < kMaxLevels; ++level) {
    if (level >= a.p.levels) break;
    const Rows<const S> rows = rows_of<const S>(a.p.q[level], head.batch, head.head);
    C square = 0;
    for (int c = lane_of_thread(); c < a.p.head_size; c += 32) {
      const C x = static_cast<C>(rows.at(i >> level, c));
      square += x * x;
    }
    reach[level] = static_cast<C>(fabs(a.p.scale)) * head.level_weight(level) * sqrt(warp_sum(square));
  }
  C widest = 0;
  for (int height = 1; height < a.heights.count; ++height) {
    const SeenEntries seen = head.seen(height, head.ancestor(height, i));
    for (int n = seen.first + lane_of_thread(); n < seen.end; n += 32) {
      if (!seen.contains(n)) continue;
      const C* of_node = radii + head.node(height, n) * width;
      C sum = of_node[a.p.levels];
#pragma unroll
      for (int level = 0; level < kMaxLevels; ++level) {
        if (level < a.p.levels) sum += reach[level] * of_node[level];
      }
      widest = fmax(widest, sum);
    }
  }
  widest = warp_max(widest);
  if (lane_of_thread() == 0) bound[item] = widest * widest / 2;
}

template <class S>
cudaError_t certificate(const StreamCall& call, void* bound) {
  using C = typename ComputeOf<S>::Type;
  const StreamArgs<S> a = stream_args<S>(call);
  auto* radii =
      reinterpret_cast<C*>(static_cast<char*>(call.workspace) + place_stream<S>(call.p, false, nullptr, nullptr));
  if (const cudaError_t e = hsa_stream_means(a, false, call.stream); e != cudaSuccess) return e;
  for (int height = 1; height < a.heights.count; ++height) {
    const int nodes = a.heights.nodes[height], items = static_cast<int>(a.p.batch * a.p.key_heads) * nodes;
    stream_radii_kernel<S><<<blocks_for(items, kWarps), kThreads, 0, call.stream>>>(a, radii, height, nodes, items);
  }
  const int64_t rows = a.p.batch * a.p.heads * a.p.tokens;
  stream_bound_kernel<S><<<blocks_for(rows, kWarps), kThreads, 0, call.stream>>>(a, radii, static_cast<C*>(bound));
  return cudaGetLastError();
}

}  // namespace

cudaError_t hsa_stream_certificate_simt(const StreamCall& call, void* bound) {
  return with_storage(call.p.dtype, [&](auto storage) { return certificate<decltype(storage)>(call, bound); });
}

}  // namespace strata::cuda
