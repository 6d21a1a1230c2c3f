// Streaming HSA on CUDA: the means of nodes, height by height, then the queries, a warp each, and backward the entries,
// a block each, from the top down. These kernels take anything; hsa_stream_tensor_cuda.cu has the queries and entries
// on tensor cores. Everything has one owner, so that results are the same from run to run.
#include <cmath>

#include "base/hsa_stream_check.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/hsa_stream.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kPieces = kMaxHeadSize / 32;

template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_means_kernel(const __grid_constant__ StreamArgs<S> a, int height, int count, bool rounded) {
  using C = typename ComputeOf<S>::Type;
  const StreamHead<S> head(a, blockIdx.x / count);
  const int n = static_cast<int>(blockIdx.x) % count, b = a.p.branching, keys = a.p.head_size, values = a.p.value_size;
  const int64_t to = head.node(height, n);
  C total = 0;
#pragma unroll 4
  for (int c = 0; c < b; ++c) total += head.mass(height - 1, n * b + c);
  const C inverse = total > 0 ? C(1) / total : C(0);
  auto mean = [&](const auto& value) {
    C sum = 0;
#pragma unroll 8
    for (int c = 0; c < b; ++c) {
      const int child = n * b + c;
      const C w = head.mass(height - 1, child);
      if (w > 0) sum += w * inverse * value(child);  // the others may hold anything
    }
    return sum;
  };
  for (int x = static_cast<int>(threadIdx.x); x < keys; x += kThreads) {
    const C k = mean([&](int child) { return head.k(height - 1, child, x); });
    a.k[to * keys + x] = k;
    if (rounded) a.rounded_k[to * keys + x] = static_cast<S>(k);
  }
  // The other threads first, so that all have their share of small heads.
  for (int x = kThreads - 1 - static_cast<int>(threadIdx.x); x < values; x += kThreads) {
    const C v = mean([&](int child) { return head.v(height - 1, child, x); });
    a.v[to * values + x] = v;
    if (rounded) a.rounded_v[to * values + x] = static_cast<S>(v);
  }
  if (threadIdx.x != 0) return;
  a.kappa[to] = a.p.key_bias.data == nullptr ? C(0) : mean([&](int child) { return head.kappa(height - 1, child); });
  a.mass[to] = total;
}

// One query and the entries it sees, by a warp; a lane has every 32nd channel.
template <class S>
struct Query {
  using C = typename ComputeOf<S>::Type;
  const StreamHead<S>& head;
  int i, lane;
  C q[kPieces] = {};

  __device__ Query(const StreamHead<S>& h, int query) : head(h), i(query), lane(static_cast<int>(threadIdx.x) % 32) {
    const Rows<const S> rows = rows_of<const S>(h.a.p.q, h.batch, h.head);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = lane + 32 * piece;
      if (c < h.a.p.head_size) q[piece] = static_cast<C>(rows.at(i, c));
    }
  }
  // f(height, n, position, score) for the entries that count, itself first.
  template <class F>
  __device__ void each_entry(const F& f) const {
    visit(0, i, i, f);
    for (int height = 0; height < head.a.heights.count && head.size(height) <= i; ++height) {
      const int ancestor = i / head.size(height), b = head.a.p.branching;
      for (int n = ancestor / b * b; n < ancestor; ++n) visit(height, ancestor, n, f);
    }
  }
  template <class F>
  __device__ void visit(int height, int ancestor, int n, const F& f) const {
    const C term = head.term(height, n);
    if (term == -static_cast<C>(INFINITY)) return;
    const int64_t at = head.position(height, ancestor, n);
    f(height, n, at, score(height, n) + term + head.position_bias(at));
  }
  __device__ C score(int height, int n) const {
    C sum = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = lane + 32 * piece;
      if (c < head.a.p.head_size) sum += q[piece] * head.k(height, n, c);
    }
    return static_cast<C>(head.a.p.scale) * warp_sum(sum);
  }
};

template <class S>
__global__ void __launch_bounds__(kThreads) stream_forward_kernel(const __grid_constant__ StreamArgs<S> a) {
  using C = typename ComputeOf<S>::Type;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= a.p.batch * a.p.heads * a.p.tokens) return;
  const StreamHead<S> head(a, item / a.p.tokens);
  const Query<S> query(head, static_cast<int>(item % a.p.tokens));
  C peak = -static_cast<C>(INFINITY), sum = 0, acc[kPieces] = {};
  query.each_entry([&](int height, int n, int64_t, C score) {
    const C top = fmax(peak, score), shrink = exp(peak - top), share = exp(score - top);
    peak = top;
    sum = sum * shrink + share;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = query.lane + 32 * piece;
      if (c < a.p.value_size) acc[piece] = acc[piece] * shrink + share * head.v(height, n, c);
    }
  });
  const Rows<S> out = rows_of<S>(a.o.out, head.batch, head.head);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int c = query.lane + 32 * piece;
    if (c < a.p.value_size) out.at(query.i, c) = static_cast<S>(sum == 0 ? C(0) : acc[piece] / sum);
  }
  if (query.lane == 0) static_cast<C*>(a.o.lse)[item] = sum == 0 ? -static_cast<C>(INFINITY) : peak + log(sum);
}

// dq, the gradient of the positions, and deltas for the entries.
template <class S>
__global__ void __launch_bounds__(kThreads) stream_query_gradient_kernel(const __grid_constant__ StreamArgs<S> a) {
  using C = typename ComputeOf<S>::Type;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= a.p.batch * a.p.heads * a.p.tokens) return;
  const StreamHead<S> head(a, item / a.p.tokens);
  const Query<S> query(head, static_cast<int>(item % a.p.tokens));
  const Rows<const S> dout = rows_of<const S>(a.g.dout, head.batch, head.head),
                      out = rows_of<const S>(a.o.out, head.batch, head.head);
  const C lse = static_cast<const C*>(a.o.lse)[item];
  C delta = 0, dy[kPieces] = {}, dq[kPieces] = {};
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int c = query.lane + 32 * piece;
    if (c >= a.p.value_size) break;
    dy[piece] = static_cast<C>(dout.at(query.i, c));
    delta += dy[piece] * static_cast<C>(out.at(query.i, c));
  }
  delta = warp_sum(delta) - (a.g.dlse == nullptr ? C(0) : static_cast<const C*>(a.g.dlse)[item]);
  if (query.lane == 0) a.deltas[item] = delta;
  query.each_entry([&](int height, int n, int64_t position, C score) {
    C dp = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = query.lane + 32 * piece;
      if (c < a.p.value_size) dp += dy[piece] * head.v(height, n, c);
    }
    const C ds = exp(score - lse) * (warp_sum(dp) - delta);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = query.lane + 32 * piece;
      if (c < a.p.head_size) dq[piece] += ds * head.k(height, n, c);
    }
    if (a.positions != nullptr && position >= 0 && query.lane == 0) add_fixed_point(a.positions + position, ds);
  });
  const Rows<S> to = rows_of<S>(a.g.dq, head.batch, head.head);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int c = query.lane + 32 * piece;
    if (c < a.p.head_size) to.at(query.i, c) = static_cast<S>(static_cast<C>(a.p.scale) * dq[piece]);
  }
}

// A block has one entry; its warps take turns with the queries that see it.
template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_entry_gradient_kernel(const __grid_constant__ StreamArgs<S> a, int height, int count) {
  using C = typename ComputeOf<S>::Type;
  __shared__ C sums[kWarps][2 * kMaxHeadSize + 1];
  const StreamHead<S> head(a, blockIdx.x / count);
  const int n = static_cast<int>(blockIdx.x) % count, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, keys = a.p.head_size, values = a.p.value_size;
  const C term = head.term(height, n);
  const Rows<const S> dout = rows_of<const S>(a.g.dout, head.batch, head.head);
  C dk[kPieces] = {}, dv[kPieces] = {}, dkappa = 0;
  const int end = term == -static_cast<C>(INFINITY) ? 0 : head.end_query(height, n);
  for (int i = head.first_query(height, n) + warp; i < end; i += kWarps) {
    const C lse = static_cast<const C*>(a.o.lse)[head.token(i)];
    if (lse == -static_cast<C>(INFINITY)) continue;
    const Query<S> query(head, i);
    const C bias = head.position_bias(head.position(height, i / head.size(height), n));
    const C p = exp(query.score(height, n) + term + bias - lse);
    C dp = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = lane + 32 * piece;
      if (c < values) dp += static_cast<C>(dout.at(i, c)) * head.v(height, n, c);
    }
    const C ds = p * (warp_sum(dp) - a.deltas[head.token(i)]);
    dkappa += ds;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = lane + 32 * piece;
      if (c < keys) dk[piece] += ds * query.q[piece];
      if (c < values) dv[piece] += p * static_cast<C>(dout.at(i, c));
    }
  }
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int c = lane + 32 * piece;
    if (c < keys) sums[warp][c] = static_cast<C>(a.p.scale) * dk[piece];
    if (c < values) sums[warp][keys + c] = dv[piece];
  }
  if (lane == 0) sums[warp][keys + values] = dkappa;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < keys + values + 1; c += kThreads) {
    C sum = 0;
    for (const auto& part : sums) sum += part[c];
    head.store_gradient(height, n, c, sum);
  }
}

StreamHeights heights_of(const HsaStreamProblem& p) {
  StreamHeights heights{};
  heights.size[0] = 1;
  for (int64_t size = p.branching; p.tokens / size > 0; size *= p.branching) {
    heights.size[heights.count] = static_cast<int>(size);
    heights.offset[heights.count] = heights.total;
    heights.total += static_cast<int>(p.tokens / size);
    ++heights.count;
  }
  return heights;
}

// Places for all that a call needs, from `start` on; returns how many bytes. `a` may be null.
template <class S>
size_t place(const HsaStreamProblem& p, bool backward, void* start, StreamArgs<S>* a) {
  using C = typename ComputeOf<S>::Type;
  StreamArgs<S> none{};
  StreamArgs<S>& to = a == nullptr ? none : *a;
  to.heights = heights_of(p);
  size_t used = 0;
  auto take = [&](auto*& pointer, int64_t count) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(static_cast<char*>(start) + used);
    used += (static_cast<size_t>(count) * sizeof(*pointer) + 255) / 256 * 256;
  };
  const int64_t streams = p.batch * p.heads, nodes = streams * to.heights.total;
  if (backward && p.positions != nullptr) take(to.positions, p.heads * p.heights * p.branching * p.branching);
  take(to.mass, nodes);
  take(to.kappa, nodes);
  take(to.k, nodes * p.head_size);
  take(to.v, nodes * p.value_size);
  if (sizeof(S) == 2) {
    take(to.rounded_k, nodes * p.head_size);
    take(to.rounded_v, nodes * p.value_size);
  }
  if (!backward) return used;
  take(to.dk, nodes * p.head_size);
  take(to.dv, nodes * p.value_size);
  take(to.dkappa, nodes);
  take(to.deltas, streams * p.tokens);
  take(to.parts, sizeof(S) == 2 ? streams * hsa_stream_parts(p, to.heights) : 0);
  return used;
}

template <class S>
cudaError_t run(const HsaStreamProblem& p, const HsaStreamOutputs& o, const HsaStreamGradients* g, void* workspace,
                cudaStream_t queue) {
  using C = typename ComputeOf<S>::Type;
  StreamArgs<S> a{};
  place(p, g != nullptr, workspace, &a);
  a.p = p;
  a.o = o;
  if (g != nullptr) a.g = *g;
  if (g == nullptr || g->dpositions == nullptr) a.positions = nullptr;
  bool tensor_cores = false;
  if constexpr (sizeof(S) == 2) {
    tensor_cores = allowed_kernels() != Kernels::kPlain && hsa_stream_fits_tensor_cores(p, o.out) &&
                   (g == nullptr || (is_wide(g->dout, p.value_size) && is_wide(g->dq, p.head_size) &&
                                     is_wide(g->dk, p.head_size) && is_wide(g->dv, p.value_size)));
  }
  const int64_t streams = p.batch * p.heads, table = p.heads * p.heights * p.branching * p.branching;
  if (a.positions != nullptr && table > 0) {
    if (const cudaError_t e = cudaMemsetAsync(a.positions, 0, table * 8, queue); e != cudaSuccess) return e;
  }
  auto nodes = [&](int height) { return static_cast<int>(p.tokens / a.heights.size[height]); };
  for (int height = 1; height < a.heights.count; ++height)
    stream_means_kernel<S>
        <<<blocks_for(streams * nodes(height), 1), kThreads, 0, queue>>>(a, height, nodes(height), tensor_cores);
  if constexpr (sizeof(S) == 2) {
    if (tensor_cores) {
      if (const cudaError_t e = hsa_stream_queries<S>(a, g != nullptr, queue); e != cudaSuccess) return e;
    }
  }
  const unsigned blocks = blocks_for(streams * p.tokens, kWarps);
  if (g == nullptr) {
    if (!tensor_cores) stream_forward_kernel<S><<<blocks, kThreads, 0, queue>>>(a);
    return cudaGetLastError();
  }
  if (!tensor_cores) stream_query_gradient_kernel<S><<<blocks, kThreads, 0, queue>>>(a);
  for (int height = a.heights.count - 1; height >= 0; --height) {
    if constexpr (sizeof(S) == 2) {
      if (tensor_cores) {
        if (const cudaError_t e = hsa_stream_entries<S>(a, height, queue); e != cudaSuccess) return e;
        continue;
      }
    }
    stream_entry_gradient_kernel<S>
        <<<blocks_for(streams * nodes(height), 1), kThreads, 0, queue>>>(a, height, nodes(height));
  }
  if (a.positions != nullptr && table > 0)
    from_fixed_point<C><<<blocks_for(table, 128), 128, 0, queue>>>(a.positions, static_cast<C*>(g->dpositions), table);
  return cudaGetLastError();
}

size_t workspace_of(const HsaStreamProblem& p, bool backward) {
  size_t bytes = 0;
  with_storage(p.dtype, [&](auto storage) {
    bytes = place<decltype(storage)>(p, backward, nullptr, nullptr);
    return cudaSuccess;
  });
  return bytes;
}

Status run_any(const HsaStreamProblem& p, const HsaStreamOutputs& o, const HsaStreamGradients* g, void* workspace,
               Stream stream, const char* what) {
  if (Status s = hsa_stream_check(p, o, On::kDevice); !s.ok()) return s;
  if (g != nullptr) {
    if (Status s = hsa_stream_check(*g, p); !s.ok()) return s;
  }
  const auto queue = static_cast<cudaStream_t>(stream);
  if (p.batch * p.tokens == 0) {
    if (g == nullptr || g->dpositions == nullptr) return {};
    const size_t number = p.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
    return cuda_status(
        cudaMemsetAsync(g->dpositions, 0, number * p.heads * p.heights * p.branching * p.branching, queue), what);
  }
  if (p.batch * p.heads * p.tokens > INT32_MAX)
    return invalid("batch, heads, tokens: expected at most 2^31 - 1 tokens in all heads on CUDA, got ",
                   p.batch * p.heads * p.tokens);
  if (workspace == nullptr && workspace_of(p, g != nullptr) > 0)
    return invalid("workspace: expected device memory, got null");
  return cuda_status(
      with_storage(p.dtype, [&](auto storage) { return run<decltype(storage)>(p, o, g, workspace, queue); }), what);
}

}  // namespace

size_t hsa_stream_forward_workspace(const HsaStreamProblem& p) { return workspace_of(p, false); }
size_t hsa_stream_backward_workspace(const HsaStreamProblem& p) { return workspace_of(p, true); }

Status hsa_stream_forward(const HsaStreamProblem& p, const HsaStreamOutputs& o, void* workspace, Stream stream) {
  return run_any(p, o, nullptr, workspace, stream, "streaming HSA forward");
}

Status hsa_stream_backward(const HsaStreamProblem& p, const HsaStreamOutputs& o, const HsaStreamGradients& g,
                           void* workspace, Stream stream) {
  return run_any(p, o, &g, workspace, stream, "streaming HSA backward");
}

}  // namespace strata::cuda
