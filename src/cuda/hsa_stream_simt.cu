// Streaming HSA without tensor cores, for anything: after the means, the queries, a warp each, and backward the
// entries, a block each, from the top down. Everything has one owner, so that results are the same from run to run.
#include "cuda/hsa_stream.cuh"
#include "cuda/online_softmax.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

// One query and the entries it sees, by a warp; a lane has every 32nd channel.
template <class S>
struct Query {
  using C = typename ComputeOf<S>::Type;
  const StreamHead<S>& head;
  int i, lane;
  C q[kLaneChannels] = {};

  __device__ Query(const StreamHead<S>& h, int query) : head(h), i(query), lane(static_cast<int>(threadIdx.x) % 32) {
    const Rows<const S> rows = rows_of<const S>(h.a.p.q[0], h.batch, h.head);
    each_lane_channel(h.a.p.head_size, [&](int x, int c) { q[x] = static_cast<C>(rows.at(i, c)); });
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
    each_lane_channel(head.a.p.head_size, [&](int x, int c) { sum += q[x] * head.k(height, n, c); });
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
  OnlineSoftmax<C> softmax;
  C acc[kLaneChannels] = {};
  query.each_entry([&](int height, int n, int64_t, C score) {
    C rescale;
    const C p = softmax.add_one(score, rescale);
    each_lane_channel(a.p.value_size, [&](int x, int c) { acc[x] = acc[x] * rescale + p * head.v(height, n, c); });
  });
  const Rows<S> out = rows_of<S>(a.o.out, head.batch, head.head);
  each_lane_channel(a.p.value_size, [&](int x, int c) {
    out.at(query.i, c) = static_cast<S>(softmax.sum == 0 ? C(0) : acc[x] / softmax.sum);
  });
  if (query.lane == 0) static_cast<C*>(a.o.lse)[item] = softmax.lse();
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
  C delta = 0, dy[kLaneChannels] = {}, dq[kLaneChannels] = {};
  each_lane_channel(a.p.value_size, [&](int x, int c) {
    dy[x] = static_cast<C>(dout.at(query.i, c));
    delta += dy[x] * static_cast<C>(out.at(query.i, c));
  });
  delta = warp_sum(delta) - (a.g.dlse == nullptr ? C(0) : static_cast<const C*>(a.g.dlse)[item]);
  if (query.lane == 0) a.deltas[item] = delta;
  query.each_entry([&](int height, int n, int64_t position, C score) {
    C dp = 0;
    each_lane_channel(a.p.value_size, [&](int x, int c) { dp += dy[x] * head.v(height, n, c); });
    const C ds = exp(score - lse) * (warp_sum(dp) - delta);
    each_lane_channel(a.p.head_size, [&](int x, int c) { dq[x] += ds * head.k(height, n, c); });
    if (a.positions != nullptr && position >= 0 && query.lane == 0) add_fixed_point(a.positions + position, ds);
  });
  const Rows<S> to = rows_of<S>(a.g.dq[0], head.batch, head.head);
  each_lane_channel(a.p.head_size,
                    [&](int x, int c) { to.at(query.i, c) = static_cast<S>(static_cast<C>(a.p.scale) * dq[x]); });
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
  C dk[kLaneChannels] = {}, dv[kLaneChannels] = {}, dkappa = 0;
  const int end = term == -static_cast<C>(INFINITY) ? 0 : head.end_query(height, n);
  for (int i = head.first_query(height, n) + warp; i < end; i += kWarps) {
    const C lse = static_cast<const C*>(a.o.lse)[head.token(i)];
    if (lse == -static_cast<C>(INFINITY)) continue;
    const Query<S> query(head, i);
    const C bias = head.position_bias(head.position(height, i / head.size(height), n));
    const C p = exp(query.score(height, n) + term + bias - lse);
    C dp = 0;
    each_lane_channel(values, [&](int, int c) { dp += static_cast<C>(dout.at(i, c)) * head.v(height, n, c); });
    const C ds = p * (warp_sum(dp) - a.deltas[head.token(i)]);
    dkappa += ds;
    each_lane_channel(keys, [&](int x, int) { dk[x] += ds * query.q[x]; });
    each_lane_channel(values, [&](int x, int c) { dv[x] += p * static_cast<C>(dout.at(i, c)); });
  }
  each_lane_channel(keys, [&](int x, int c) { sums[warp][c] = static_cast<C>(a.p.scale) * dk[x]; });
  each_lane_channel(values, [&](int x, int c) { sums[warp][keys + c] = dv[x]; });
  if (lane == 0) sums[warp][keys + values] = dkappa;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < keys + values + 1; c += kThreads) {
    C sum = 0;
    for (const auto& part : sums) sum += part[c];
    head.store_gradient(height, n, c, sum);
  }
}

template <class S>
cudaError_t forward(const StreamCall& call) {
  const StreamArgs<S> a = stream_args<S>(call);
  if (const cudaError_t e = hsa_stream_means(a, false, call.stream); e != cudaSuccess) return e;
  stream_forward_kernel<S><<<blocks_for(a.p.batch * a.p.heads * a.p.tokens, kWarps), kThreads, 0, call.stream>>>(a);
  return cudaGetLastError();
}

template <class S>
cudaError_t backward(const StreamCall& call) {
  using C = typename ComputeOf<S>::Type;
  const StreamArgs<S> a = stream_args<S>(call);
  const int64_t streams = a.p.batch * a.p.heads;
  const FixedPointTable positions = position_gradients(a);
  if (const cudaError_t e = positions.clear(call.stream); e != cudaSuccess) return e;
  if (const cudaError_t e = hsa_stream_means(a, false, call.stream); e != cudaSuccess) return e;
  stream_query_gradient_kernel<S><<<blocks_for(streams * a.p.tokens, kWarps), kThreads, 0, call.stream>>>(a);
  for (int height = a.heights.count - 1; height >= 0; --height) {
    const int entries = static_cast<int>(a.p.tokens / a.heights.size[height]);
    stream_entry_gradient_kernel<S><<<blocks_for(streams * entries, 1), kThreads, 0, call.stream>>>(a, height, entries);
  }
  if (const cudaError_t e = hsa_stream_weight_gradient(a, call.stream); e != cudaSuccess) return e;
  return positions.convert(static_cast<C*>(a.g.dpositions), call.stream);
}

}  // namespace

cudaError_t hsa_stream_forward_simt(const StreamCall& call) {
  return with_storage(call.p.dtype, [&](auto storage) { return forward<decltype(storage)>(call); });
}
cudaError_t hsa_stream_backward_simt(const StreamCall& call) {
  return with_storage(call.p.dtype, [&](auto storage) { return backward<decltype(storage)>(call); });
}

}  // namespace strata::cuda
