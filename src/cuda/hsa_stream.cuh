// What the kernels of streaming HSA compute with: the entries of one stream.
#pragma once

#include <cmath>

#include "cuda/fixed_point.cuh"
#include "cuda/hsa_stream_kernels.h"
#include "cuda/simt.cuh"

namespace strata::cuda {

template <class S>
struct StreamHead {
  using C = typename ComputeOf<S>::Type;
  const StreamArgs<S>& a;
  int64_t stream, batch, head;

  __device__ StreamHead(const StreamArgs<S>& args, int64_t s)
      : a(args), stream(s), batch(s / args.p.heads), head(s % args.p.heads) {}

  __device__ int size(int height) const { return a.heights.size[height]; }
  __device__ int count(int height) const { return static_cast<int>(a.p.tokens) / size(height); }
  __device__ int64_t node(int height, int n) const { return stream * a.heights.total + a.heights.offset[height] + n; }
  __device__ int64_t token(int t) const { return stream * a.p.tokens + t; }

  __device__ C mass(int height, int n) const {
    if (height > 0) return a.mass[node(height, n)];
    return a.p.weights.data == nullptr ? C(1) : rows_of<const C>(a.p.weights, batch, 0).at(n, 0);
  }
  __device__ C kappa(int height, int n) const {
    if (height > 0) return a.kappa[node(height, n)];
    return a.p.key_bias.data == nullptr ? C(0) : rows_of<const C>(a.p.key_bias, batch, head).at(n, 0);
  }
  // What an entry adds to all scores; -inf hides it.
  __device__ C term(int height, int n) const {
    const C w = mass(height, n);
    return w > 0 ? log(w) + kappa(height, n) : -static_cast<C>(INFINITY);
  }
  __device__ C k(int height, int n, int c) const {
    return height > 0 ? a.k[node(height, n) * a.p.head_size + c]
                      : static_cast<C>(rows_of<const S>(a.p.k[0], batch, head).at(n, c));
  }
  __device__ C v(int height, int n, int c) const {
    return height > 0 ? a.v[node(height, n) * a.p.value_size + c]
                      : static_cast<C>(rows_of<const S>(a.p.v, batch, head).at(n, c));
  }
  // Index into the position table of sibling n for a query below `ancestor`, both nodes of this height; -1 for none.
  __device__ int64_t position(int height, int ancestor, int n) const {
    const int b = a.p.branching;
    if (a.p.positions == nullptr || height >= a.p.heights || ancestor == n) return -1;
    return ((head * a.p.heights + height) * b + ancestor % b) * b + n % b;
  }
  __device__ C position_bias(int64_t at) const { return at < 0 ? C(0) : static_cast<const C*>(a.p.positions)[at]; }

  // Queries that see entry n: first .. end - 1.
  __device__ int first_query(int height, int n) const { return (n + (height > 0 ? 1 : 0)) * size(height); }
  __device__ int end_query(int height, int n) const {
    const int64_t end = (n / a.p.branching + int64_t{1}) * a.p.branching * size(height);
    return static_cast<int>(min(end, a.p.tokens));
  }

  // The gradient of an entry, which also has its share of its parent's: dk, dv, then dkappa as channel
  // head_size + value_size. Heights are done from the top down.
  __device__ void store_gradient(int height, int n, int channel, C x) const {
    const HsaStreamProblem& p = a.p;
    const int parent = n / p.branching, keys = p.head_size, both = keys + p.value_size;
    if (height + 1 < a.heights.count && parent < count(height + 1)) {
      const C w = mass(height, n), all = a.mass[node(height + 1, parent)];
      const int64_t at = node(height + 1, parent);
      const C above = channel < keys   ? a.dk[at * keys + channel]
                      : channel < both ? a.dv[at * p.value_size + channel - keys]
                                       : a.dkappa[at];
      if (w > 0) x += w / all * above;
    }
    if (height > 0) {
      const int64_t at = node(height, n);
      (channel < keys   ? a.dk[at * keys + channel]
       : channel < both ? a.dv[at * p.value_size + channel - keys]
                        : a.dkappa[at]) = x;
    } else if (channel < keys) {
      rows_of<S>(a.g.dk[0], batch, head).at(n, channel) = static_cast<S>(x);
    } else if (channel < both) {
      rows_of<S>(a.g.dv, batch, head).at(n, channel - keys) = static_cast<S>(x);
    } else {
      if (a.g.dkey_bias.data != nullptr) rows_of<C>(a.g.dkey_bias, batch, head).at(n, 0) = x;
      if (a.leaf_dkappa != nullptr) a.leaf_dkappa[token(n)] = x;
    }
  }
};

// The gradient of the position table, as it is summed.
template <class S>
FixedPointTable position_gradients(const StreamArgs<S>& a) {
  const int64_t entries = stream_position_entries(a.p);
  return {entries > 0 ? a.positions : nullptr, entries};
}

}  // namespace strata::cuda
