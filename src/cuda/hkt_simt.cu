// HKT attention without tensor cores: float32, float64, and whatever the other kernels do not take. A warp has one
// query (or, for gradients of keys, a block of keys) and loops over 32 keys (queries) at a time, one per lane.
#include <cmath>

#include "base/philox.h"
#include "cuda/hkt_kernels.h"
#include "cuda/hkt_scores.cuh"
#include "cuda/online_softmax.cuh"
#include "cuda/simt.cuh"

namespace strata::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

// What all three kernels see of a sequence and a head.
template <class S>
struct Line {
  using C = typename ComputeOf<S>::Type;
  __device__ Line(const HktProblem& problem, int64_t b, int64_t h)
      : p(problem), batch(b), head(h), key_head(h / (p.heads / p.key_heads)), limits(p, b) {}
  __device__ C weight(int l) const { return static_cast<const C*>(p.weights)[head * p.levels + l]; }
  __device__ bool sees(int64_t i, int64_t j) const {
    return limits.visible_keys(p, static_cast<int>(i)).has(static_cast<int>(j));
  }
  // What dropout multiplies a weight by.
  __device__ C kept(int64_t i, int64_t j) const {
    if (p.dropout.probability == 0) return 1;
    const uint32_t threshold = dropout_threshold(p.dropout.probability);
    const bool keep = is_kept(dropout_key(p.dropout.state), threshold, static_cast<uint32_t>(batch),
                              static_cast<uint32_t>(head), static_cast<uint32_t>(i), static_cast<uint32_t>(j));
    return keep ? static_cast<C>(dropout_factor(threshold)) : C(0);
  }
  // S_ij, with the scale, the bias and ALiBi.
  __device__ C score(int64_t i, int64_t j) const {
    C sum = 0;
    for (int l = 0; l < p.levels; ++l) {
      const Rows<const S> q = rows_of<const S>(p.q[l], batch, head), k = rows_of<const S>(p.k[l], batch, key_head);
      C dot = 0;
      for (int c = 0; c < p.head_size; ++c) dot += static_cast<C>(q.at(i >> l, c)) * static_cast<C>(k.at(j >> l, c));
      sum += weight(l) * dot;
    }
    sum *= static_cast<C>(p.scale);
    if (p.bias.data != nullptr) sum += static_cast<C>(rows_of<const S>(p.bias, batch, head).at(i, j));
    if (p.slopes != nullptr) sum -= static_cast<const C*>(p.slopes)[head] * static_cast<C>(i < j ? j - i : i - j);
    return sum;
  }

  const HktProblem& p;
  int64_t batch, head, key_head;
  SequenceLimits limits;
};

// The row block of `size` rows that this warp has.
struct WarpBlock {
  int64_t batch, first, index;
  __device__ WarpBlock(const HktSide& side, int64_t size)
      : index(static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) {
    const HktTile at = locate_tile(side, min(index, tile_count(side, size) - 1), size);
    batch = at.sequence;
    first = index < tile_count(side, size) ? at.tile * size : side.tokens;
  }
};

template <class S>
__global__ void __launch_bounds__(kThreads)
    simt_forward_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o) {
  using C = typename ComputeOf<S>::Type;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const WarpBlock block(query_side(p), 1);
  const Line<S> line(p, block.batch, blockIdx.y);
  const int64_t i = block.first;
  if (i >= line.limits.query_rows(p)) return;
  const Rows<const S> v = rows_of<const S>(p.v, line.batch, line.key_head);
  OnlineSoftmax<C> softmax;
  C out[kLaneChannels] = {};
  const auto visible = line.limits.visible_keys(p, static_cast<int>(i));
  const int64_t end = visible.end;
  for (int64_t first = max(0, visible.first); first < end; first += 32) {
    const int64_t j = first + lane;
    C rescale;
    const C weight = softmax.add_warp(j < end ? line.score(i, j) : -static_cast<C>(INFINITY), rescale);
#pragma unroll
    for (C& channel : out) channel *= rescale;
    const C dropped = j < end ? weight * line.kept(i, j) : C(0);
    for (int x = 0; x < 32 && first + x < end; ++x) {
      const C part = __shfl_sync(~0u, dropped, x);
      if (part == 0) continue;  // masked pairs may hold anything
      each_lane_channel(p.value_size, [&](int n, int c) { out[n] += part * static_cast<C>(v.at(first + x, c)); });
    }
  }
  const Rows<S> to = rows_of<S>(o.out, line.batch, line.head);
  each_lane_channel(p.value_size, [&](int n, int c) {
    to.at(i, c) = static_cast<S>(softmax.sum == 0 ? C(0) : out[n] / softmax.sum);
  });
  if (lane == 0) static_cast<C*>(o.lse)[hkt_line(p, line.batch, line.head) + i] = softmax.lse();
}

// P_ij, after dropout, and dS_ij of one pair.
template <class S>
__device__ void pair_gradient(const Line<S>& line, const Rows<const S>& v, const Rows<const S>& dout,
                              const typename ComputeOf<S>::Type* lse, const typename ComputeOf<S>::Type* delta,
                              int64_t i, int64_t j, typename ComputeOf<S>::Type& weight,
                              typename ComputeOf<S>::Type& ds) {
  using C = typename ComputeOf<S>::Type;
  weight = ds = 0;
  if (!line.sees(i, j) || lse[i] == -static_cast<C>(INFINITY)) return;
  const C s = line.score(i, j);
  if (s == -static_cast<C>(INFINITY)) return;
  weight = exp(s - lse[i]);
  C dot = 0;
  for (int c = 0; c < line.p.value_size; ++c) dot += static_cast<C>(dout.at(i, c)) * static_cast<C>(v.at(j, c));
  const C kept = line.kept(i, j);
  ds = weight * (kept * dot - delta[i]);
  weight *= kept;
}

// Sums over the blocks of all levels: row i adds to row i >> l of level l, and when that is complete it is stored.
template <class C>
struct LevelRows {
  C sum[kMaxLevels][kLaneChannels];
  __device__ void clear() {
#pragma unroll
    for (int l = 0; l < kMaxLevels; ++l)
#pragma unroll
      for (C& channel : sum[l]) channel = 0;
  }
  template <class S>
  __device__ void add(const HktProblem& p, const ConstView* views, int64_t batch, int64_t head, int64_t row,
                      const C* factor, C value) {
#pragma unroll
    for (int l = 0; l < kMaxLevels; ++l) {
      if (l >= p.levels) break;
      const Rows<const S> rows = rows_of<const S>(views[l], batch, head);
      each_lane_channel(p.head_size,
                        [&](int i, int c) { sum[l][i] += value * factor[l] * static_cast<C>(rows.at(row >> l, c)); });
    }
  }
  // After row i of `rows`: f(level, row of it, channel, sum) for every level that is complete, which starts anew.
  template <class F>
  __device__ void finish(const HktProblem& p, int64_t i, int64_t rows, const F& f) {
#pragma unroll
    for (int l = 0; l < kMaxLevels; ++l) {
      if (l >= p.levels || ((i + 1) % (int64_t{1} << l) != 0 && i + 1 != rows)) continue;
      each_lane_channel(p.head_size, [&](int n, int c) { f(l, i >> l, c, sum[l][n]); });
#pragma unroll
      for (C& channel : sum[l]) channel = 0;
    }
  }
};

// dq of a block of 2^(L-1) rows; with it parts of da, and dbias.
template <class S>
__global__ void __launch_bounds__(kThreads)
    simt_query_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o,
                      const __grid_constant__ HktGradients g, const void* deltas, void* weight_parts) {
  using C = typename ComputeOf<S>::Type;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t size = int64_t{1} << (p.levels - 1), blocks = tile_count(query_side(p), size);
  const WarpBlock block(query_side(p), size);
  if (block.index >= blocks) return;
  const Line<S> line(p, block.batch, blockIdx.y);
  const int64_t at = hkt_line(p, line.batch, line.head), first_row = block.first, end = line.limits.query_rows(p),
                keys = line.limits.key_rows(p);
  const Rows<const S> v = rows_of<const S>(p.v, line.batch, line.key_head),
                      dout = rows_of<const S>(g.dout, line.batch, line.head);
  const C* lse = static_cast<const C*>(o.lse) + at;
  const C* delta = static_cast<const C*>(deltas) + at;
  C factor[kMaxLevels], part[kMaxLevels] = {};
  for (C& one : factor) one = static_cast<C>(p.scale);
  LevelRows<C> rows;
  rows.clear();
  for (int64_t i = first_row; i < min(first_row + size, end); ++i) {
    for (int64_t first = 0; first < keys; first += 32) {
      C weight = 0, ds = 0;
      if (first + lane < keys) {
        pair_gradient(line, v, dout, lse, delta, i, first + lane, weight, ds);
        if (g.dbias.data != nullptr)
          rows_of<S>(g.dbias, line.batch, line.head).at(i, first + lane) = static_cast<S>(ds);
      }
      for (int x = 0; x < 32; ++x) {
        const C value = __shfl_sync(~0u, ds, x);
        if (value != 0) rows.template add<S>(p, p.k, line.batch, line.key_head, first + x, factor, value);
      }
    }
    rows.finish(p, i, end, [&](int l, int64_t row, int c, C sum) {
      rows_of<S>(g.dq[l], line.batch, line.head).at(row, c) = static_cast<S>(sum * line.weight(l));
      if (row << l < line.limits.queries)
        part[l] += sum * static_cast<C>(rows_of<const S>(p.q[l], line.batch, line.head).at(row, c));
    });
  }
#pragma unroll
  for (int l = 0; l < kMaxLevels; ++l) {
    const C total = warp_sum(part[l]);
    if (lane == 0 && l < p.levels)
      static_cast<C*>(weight_parts)[(line.head * blocks + block.index) * kMaxLevels + l] = total;
  }
}

// dk and dv of a block of 2^(L-1) keys, over all the heads that share them.
template <class S>
__global__ void __launch_bounds__(kThreads)
    simt_key_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o,
                    const __grid_constant__ HktGradients g, const void* deltas) {
  using C = typename ComputeOf<S>::Type;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t size = int64_t{1} << (p.levels - 1);
  const WarpBlock block(key_side(p), size);
  const int64_t batch = block.batch, first_key = block.first, key_head = blockIdx.y, group = p.heads / p.key_heads;
  const SequenceLimits limits(p, batch);
  LevelRows<C> rows;
  rows.clear();
  for (int64_t j = first_key; j < min(first_key + size, static_cast<int64_t>(limits.key_rows(p))); ++j) {
    C dv[kLaneChannels] = {};
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const Line<S> line(p, batch, head);
      const Rows<const S> v = rows_of<const S>(p.v, batch, key_head), dout = rows_of<const S>(g.dout, batch, head);
      const C* lse = static_cast<const C*>(o.lse) + hkt_line(p, batch, head);
      const C* delta = static_cast<const C*>(deltas) + hkt_line(p, batch, head);
      C factor[kMaxLevels];
#pragma unroll
      for (int l = 0; l < kMaxLevels; ++l) factor[l] = l < p.levels ? static_cast<C>(p.scale) * line.weight(l) : C(0);
      for (int64_t first = 0; first < limits.query_rows(p); first += 32) {
        C weight = 0, ds = 0;
        if (first + lane < limits.query_rows(p)) pair_gradient(line, v, dout, lse, delta, first + lane, j, weight, ds);
        for (int x = 0; x < 32; ++x) {
          const C part = __shfl_sync(~0u, weight, x), value = __shfl_sync(~0u, ds, x);
          if (value != 0) rows.template add<S>(p, p.q, batch, head, first + x, factor, value);
          if (part == 0) continue;
          each_lane_channel(p.value_size, [&](int n, int c) { dv[n] += part * static_cast<C>(dout.at(first + x, c)); });
        }
      }
    }
    each_lane_channel(p.value_size,
                      [&](int n, int c) { rows_of<S>(g.dv, batch, key_head).at(j, c) = static_cast<S>(dv[n]); });
    rows.finish(p, j, limits.key_rows(p), [&](int l, int64_t row, int c, C sum) {
      rows_of<S>(g.dk[l], batch, key_head).at(row, c) = static_cast<S>(sum);
    });
  }
}

// D_i = <dO_i, O_i> - dlse_i, a thread per row.
template <class S>
__global__ void simt_delta_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o,
                                  const __grid_constant__ HktGradients g, void* deltas) {
  using C = typename ComputeOf<S>::Type;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= hkt_lines(p)) return;
  const LineRow line(p, at);
  const int64_t t = line.row;
  const Rows<const S> out = line.rows<const S>(o.out), dout = line.rows<const S>(g.dout);
  C sum = g.dlse == nullptr ? C(0) : -static_cast<const C*>(g.dlse)[at];
  for (int c = 0; c < p.value_size; ++c) sum += static_cast<C>(out.at(t, c)) * static_cast<C>(dout.at(t, c));
  static_cast<C*>(deltas)[at] = sum;
}

template <class S>
__global__ void simt_weight_kernel(const __grid_constant__ HktProblem p, const void* parts, int64_t blocks,
                                   void* dweights) {
  using C = typename ComputeOf<S>::Type;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= p.heads * p.levels) return;
  C sum = 0;
  for (int64_t block = 0; block < blocks; ++block)
    sum += static_cast<const C*>(parts)[(at / p.levels * blocks + block) * kMaxLevels + at % p.levels];
  static_cast<C*>(dweights)[at] = sum;
}

dim3 grid_of(int64_t blocks, int64_t heads) {
  return {static_cast<unsigned>((blocks + kWarps - 1) / kWarps), static_cast<unsigned>(heads)};
}

template <class S>
cudaError_t backward(const HktProblem& p, const HktOutputs& o, const HktGradients& g, void* workspace,
                     cudaStream_t stream) {
  using C = typename ComputeOf<S>::Type;
  const int64_t lines = hkt_lines(p), size = int64_t{1} << (p.levels - 1);
  const int64_t blocks = tile_count(query_side(p), size), key_blocks = tile_count(key_side(p), size);
  void* parts = static_cast<C*>(workspace) + lines;
  if (lines > 0)
    simt_delta_kernel<S><<<static_cast<unsigned>((lines + 255) / 256), 256, 0, stream>>>(p, o, g, workspace);
  if (blocks > 0) simt_query_kernel<S><<<grid_of(blocks, p.heads), kThreads, 0, stream>>>(p, o, g, workspace, parts);
  if (key_blocks > 0) simt_key_kernel<S><<<grid_of(key_blocks, p.key_heads), kThreads, 0, stream>>>(p, o, g, workspace);
  simt_weight_kernel<S>
      <<<static_cast<unsigned>((p.heads * p.levels + 127) / 128), 128, 0, stream>>>(p, parts, blocks, g.dweights);
  return cudaGetLastError();
}

}  // namespace

cudaError_t hkt_forward_simt(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  return with_storage(p.dtype, [&](auto storage) {
    simt_forward_kernel<decltype(storage)>
        <<<grid_of(tile_count(query_side(p), 1), p.heads), kThreads, 0, stream>>>(p, o);
    return cudaGetLastError();
  });
}

size_t hkt_backward_workspace_simt(const HktProblem& p) {
  const int64_t blocks = tile_count(query_side(p), int64_t{1} << (p.levels - 1));
  return static_cast<size_t>(hkt_lines(p) + p.heads * blocks * kMaxLevels) *
         (p.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float));
}

cudaError_t hkt_backward_simt(const HktProblem& p, const HktOutputs& o, const HktGradients& g, void* workspace,
                              cudaStream_t stream) {
  return with_storage(p.dtype, [&](auto storage) { return backward<decltype(storage)>(p, o, g, workspace, stream); });
}

}  // namespace strata::cuda
