// Streaming attention without tensor cores, for anything: after the means, the queries, a warp each, and backward the
// entries, a block each, from the top down. A coarse row of a level has the sum over its queries or entries, so
// backward goes level by level. Everything has one owner, so that results are the same from run to run.
#include "cuda/hsa_stream.cuh"
#include "cuda/online_softmax.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

__device__ inline int64_t rows_of_level(int64_t tokens, int level) { return (tokens + (1 << level) - 1) >> level; }

// One query and the entries it sees, by a warp; a lane has every 32nd channel.
template <class S>
struct Query {
  using C = typename ComputeOf<S>::Type;
  const StreamHead<S>& head;
  int i, lane;
  C q[kLaneChannels] = {};  // of level 0

  __device__ Query(const StreamHead<S>& h, int query) : head(h), i(query), lane(lane_of_thread()) {
    each_lane_channel(h.a.p.head_size, [&](int x, int c) { q[x] = at_level(0, c); });
  }
  __device__ C at_level(int level, int c) const {
    return static_cast<C>(rows_of<const S>(head.a.p.q[level], head.batch, head.head).at(i >> level, c));
  }
  // f(height, n, position, score) for the entries that count.
  template <class F>
  __device__ void each_entry(const F& f) const {
    for (int height = 0; height < head.a.heights.count; ++height) {
      const int ancestor = head.ancestor(height, i);
      const SeenEntries seen = head.seen(height, ancestor);
      for (int n = seen.first; n < seen.end; ++n) {
        if (seen.contains(n)) visit(height, ancestor, n, f);
      }
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
    each_lane_channel(head.a.p.head_size, [&](int x, int c) { sum += q[x] * head.k(height, n, 0, c); });
    sum *= head.level_weight(0);
    for (int level = 1; level < head.a.p.levels; ++level) {
      const C weight = head.level_weight(level);
      each_lane_channel(head.a.p.head_size,
                        [&](int, int c) { sum += weight * at_level(level, c) * head.k(height, n, level, c); });
    }
    return static_cast<C>(head.a.p.scale) * warp_sum(sum);
  }
};

template <class S>
__global__ void __launch_bounds__(kThreads) stream_forward_kernel(const __grid_constant__ StreamArgs<S> a) {
  using C = typename ComputeOf<S>::Type;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_thread();
  if (item >= a.p.batch * a.p.heads * a.p.tokens) return;
  const StreamHead<S> head(a, static_cast<int>(item / a.p.tokens));
  if (item % a.p.tokens >= head.tokens) return;
  const Query<S> query(head, static_cast<int>(item % a.p.tokens));
  OnlineSoftmax<C> softmax;
  C acc[kLaneChannels] = {};
  query.each_entry([&](int height, int n, int64_t, C score) {
    C rescale;
    const C p = softmax.add_one(score, rescale) * (head.has_dropout() ? head.kept(query.i, height, n) : C(1));
    each_lane_channel(a.p.value_size, [&](int x, int c) { acc[x] = acc[x] * rescale + p * head.v(height, n, c); });
  });
  const Rows<S> out = rows_of<S>(a.o.out, head.batch, head.head);
  each_lane_channel(a.p.value_size, [&](int x, int c) {
    out.at(query.i, c) = static_cast<S>(softmax.sum == 0 ? C(0) : acc[x] / softmax.sum);
  });
  if (query.lane == 0) static_cast<C*>(a.o.lse)[head.token(query.i)] = softmax.lse();
}

// <dout, out> - dlse of every query.
template <class S>
__global__ void __launch_bounds__(kThreads) stream_delta_kernel(const __grid_constant__ StreamArgs<S> a) {
  using C = typename ComputeOf<S>::Type;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_thread();
  if (item >= a.p.batch * a.p.heads * a.p.tokens) return;
  const StreamHead<S> head(a, static_cast<int>(item / a.p.tokens));
  const int64_t i = item % a.p.tokens;
  if (i >= head.tokens) return;
  const int64_t at = head.token(static_cast<int>(i));
  const Rows<const S> dout = rows_of<const S>(a.g.dout, head.batch, head.head),
                      out = rows_of<const S>(a.o.out, head.batch, head.head);
  C delta = 0;
  each_lane_channel(a.p.value_size,
                    [&](int, int c) { delta += static_cast<C>(dout.at(i, c)) * static_cast<C>(out.at(i, c)); });
  delta = warp_sum(delta) - (a.g.dlse == nullptr ? C(0) : static_cast<const C*>(a.g.dlse)[at]);
  if (lane_of_thread() == 0) a.deltas[at] = delta;
}

// dq of one level, a row per warp; with level 0 also the gradient of the positions.
template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_query_gradient_kernel(const __grid_constant__ StreamArgs<S> a, int level) {
  using C = typename ComputeOf<S>::Type;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_thread();
  const int64_t rows = rows_of_level(a.p.tokens, level);
  if (item >= a.p.batch * a.p.heads * rows) return;
  const StreamHead<S> head(a, static_cast<int>(item / rows));
  const int64_t row = item % rows, end = min(static_cast<int64_t>(head.tokens), (row + 1) << level);
  if (row << level >= end) return;
  const Rows<const S> dout = rows_of<const S>(a.g.dout, head.batch, head.head);
  C dq[kLaneChannels] = {};
  for (int64_t i = row << level; i < end; ++i) {
    const Query<S> query(head, static_cast<int>(i));
    const C lse = static_cast<const C*>(a.o.lse)[head.token(query.i)], delta = a.deltas[head.token(query.i)];
    C dy[kLaneChannels] = {};
    each_lane_channel(a.p.value_size, [&](int x, int c) { dy[x] = static_cast<C>(dout.at(i, c)); });
    query.each_entry([&](int height, int n, int64_t position, C score) {
      C dp = 0;
      each_lane_channel(a.p.value_size, [&](int x, int c) { dp += dy[x] * head.v(height, n, c); });
      const C kept = head.has_dropout() ? head.kept(query.i, height, n) : C(1);
      const C ds = exp(score - lse) * (kept * warp_sum(dp) - delta);
      each_lane_channel(a.p.head_size, [&](int x, int c) { dq[x] += ds * head.k(height, n, level, c); });
      if (level == 0 && a.positions != nullptr && position >= 0 && query.lane == 0)
        add_fixed_point(a.positions + position, ds);
    });
  }
  const Rows<S> to = rows_of<S>(a.g.dq[level], head.batch, head.head);
  const Rows<const S> q = rows_of<const S>(a.p.q[level], head.batch, head.head);
  const C scale = static_cast<C>(a.p.scale), weight = head.level_weight(level);
  C part = 0;
  each_lane_channel(a.p.head_size, [&](int x, int c) {
    to.at(row, c) = static_cast<S>(scale * weight * dq[x]);
    if (dq[x] != 0) part += scale * dq[x] * static_cast<C>(q.at(row, c));
  });
  if (a.level_parts == nullptr) return;
  part = warp_sum(part);
  if (lane_of_thread() == 0) a.level_parts[(head.stream * a.p.levels + level) * a.p.tokens + row] = part;
}

// A block has one entry, or a coarse row of the leaves, in one level; its warps take turns with the queries that see
// it. With level 0 also dv and dkappa.
template <class S>
struct EntryGradient {
  using C = typename ComputeOf<S>::Type;
  const StreamArgs<S>& a;
  const StreamKeys<S>& keys;
  int height, level;
  C dk[kLaneChannels] = {}, dv[kLaneChannels] = {}, dkappa = 0;

  __device__ void add_queries(int n) {
    const C term = keys.term(height, n);
    if (term == -static_cast<C>(INFINITY)) return;
    for (int g = 0; g < static_cast<int>(a.heights.group.value); ++g) {
      const StreamHead<S> head(keys, g);
      for (int i = keys.first_query(height, n) + warp_of_thread(); i < keys.end_query(height, n); i += kWarps)
        add_query(head, n, i, term);
    }
  }
  __device__ void add_query(const StreamHead<S>& head, int n, int i, C term) {
    const C lse = static_cast<const C*>(a.o.lse)[head.token(i)];
    const int ancestor = head.ancestor(height, i);
    if (lse == -static_cast<C>(INFINITY) || !head.seen(height, ancestor).contains(n)) return;
    const Query<S> query(head, i);
    const C p = exp(query.score(height, n) + term + head.position_bias(head.position(height, ancestor, n)) - lse);
    const Rows<const S> dout = rows_of<const S>(a.g.dout, head.batch, head.head);
    C dp = 0;
    each_lane_channel(a.p.value_size, [&](int, int c) { dp += static_cast<C>(dout.at(i, c)) * head.v(height, n, c); });
    const C kept = head.has_dropout() ? head.kept(i, height, n) : C(1);
    const C ds = p * (kept * warp_sum(dp) - a.deltas[head.token(i)]), weight = head.level_weight(level);
    dkappa += ds;
    each_lane_channel(a.p.head_size, [&](int x, int c) { dk[x] += weight * ds * query.at_level(level, c); });
    if (level > 0) return;
    each_lane_channel(a.p.value_size, [&](int x, int c) { dv[x] += kept * p * static_cast<C>(dout.at(i, c)); });
  }
};

template <class S>
__global__ void __launch_bounds__(kThreads)
    stream_entry_gradient_kernel(const __grid_constant__ StreamArgs<S> a, int height, int level, int rows) {
  using C = typename ComputeOf<S>::Type;
  __shared__ C sums[kWarps][2 * kMaxHeadSize + 1];
  const StreamKeys<S> keys(a, static_cast<int>(blockIdx.x) / rows);
  const int row = static_cast<int>(blockIdx.x % rows), warp = warp_of_thread();
  const int d = a.p.head_size, values = level == 0 ? a.p.value_size : 0;
  const int first = height == 0 ? row << level : row;
  const int end =
      height == 0 ? static_cast<int>(min(static_cast<int64_t>(keys.tokens), (int64_t{row} + 1) << level)) : row + 1;
  if (first >= keys.count(height)) return;
  EntryGradient<S> gradient{a, keys, height, level};
  for (int n = first; n < end; ++n) gradient.add_queries(n);
  each_lane_channel(d, [&](int x, int c) { sums[warp][c] = static_cast<C>(a.p.scale) * gradient.dk[x]; });
  each_lane_channel(values, [&](int x, int c) { sums[warp][d + c] = gradient.dv[x]; });
  if (lane_of_thread() == 0) sums[warp][d + values] = gradient.dkappa;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < (level == 0 ? d + values + 1 : d); c += kThreads) {
    C sum = 0;
    for (const auto& part : sums) sum += part[c];
    for (int n = first; n < end; ++n) sum += keys.from_parent(height, n, level, c);
    keys.store_gradient(height, row, level, c, sum);
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
  const int64_t queries = a.p.batch * a.p.heads, keys = a.p.batch * a.p.key_heads;
  const FixedPointTable positions = position_gradients(a);
  if (const cudaError_t e = positions.clear(call.stream); e != cudaSuccess) return e;
  if (const cudaError_t e = hsa_stream_means(a, false, call.stream); e != cudaSuccess) return e;
  if (const cudaError_t e = clear_level_parts(a, call.stream); e != cudaSuccess) return e;
  stream_delta_kernel<S><<<blocks_for(queries * a.p.tokens, kWarps), kThreads, 0, call.stream>>>(a);
  for (int level = 0; level < a.p.levels; ++level) {
    const int64_t rows = hkt_level_tokens(a.p.tokens, level);
    stream_query_gradient_kernel<S><<<blocks_for(queries * rows, kWarps), kThreads, 0, call.stream>>>(a, level);
    if (const cudaError_t e = hsa_stream_level_gradient(a, level, rows, call.stream); e != cudaSuccess) return e;
  }
  for (int height = a.heights.count - 1; height >= 0; --height) {
    for (int level = 0; level < a.p.levels; ++level) {
      const int rows = static_cast<int>(height == 0 ? hkt_level_tokens(a.p.tokens, level) : a.heights.nodes[height]);
      stream_entry_gradient_kernel<S><<<blocks_for(keys * rows, 1), kThreads, 0, call.stream>>>(a, height, level, rows);
    }
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
