// What the kernels of streaming attention compute with: the entries of one key stream, and who sees them.
#pragma once

#include <cmath>

#include "base/stream_rows.h"
#include "cuda/fixed_point.cuh"
#include "cuda/hsa_stream_kernels.h"
#include "cuda/simt.cuh"

namespace strata::cuda {

// The entries of one height that a query sees: first .. end - 1 without hole_first .. hole_end - 1.
struct SeenEntries {
  int first, end, hole_first, hole_end;
  __device__ bool contains(int n) const {  // without branches
    auto within = [n](int from, int to) { return static_cast<unsigned>(n - from) < static_cast<unsigned>(to - from); };
    return static_cast<int>(within(first, max(first, end))) > static_cast<int>(within(hole_first, hole_end));
  }
};

// One sequence and key head.
template <class S>
struct StreamKeys {
  using C = typename ComputeOf<S>::Type;
  const StreamArgs<S>& a;
  int batch, key_head, key_stream;
  int tokens;  // of this sequence

  __device__ StreamKeys(const StreamArgs<S>& args, int b, int h)
      : a(args),
        batch(b),
        key_head(h),
        key_stream(b * static_cast<int>(args.p.key_heads) + h),
        tokens(static_cast<int>(stream_tokens(args.p, b))) {}
  // All key streams, one after the other.
  __device__ StreamKeys(const StreamArgs<S>& args, int stream)
      : StreamKeys(args, stream / static_cast<int>(args.p.key_heads), stream % static_cast<int>(args.p.key_heads)) {}

  __device__ int size(int height) const { return a.heights.size[height]; }
  __device__ int ancestor(int height, int t) const { return a.heights.by_size[height].quotient(t); }
  // Nodes of a height that some token sees; a packed sequence may have fewer than the longest.
  __device__ int count(int height) const {
    if (a.p.lengths == nullptr) return a.heights.nodes[height];
    if (height == 0) return tokens;
    const int all = (tokens + size(height) - 1) / size(height), near = a.heights.near;
    return all <= near ? 0 : a.p.both_sides ? all : all - near;
  }
  __device__ int64_t node(int height, int n) const {
    return static_cast<int64_t>(key_stream) * a.heights.total + a.heights.offset[height] + n;
  }
  __device__ int64_t leaf(int t) const { return key_stream * a.p.tokens + t; }
  __device__ int children(int height, int n) const {
    return min(a.p.branching, count(height - 1) - n * a.p.branching);  // of both sides, the last node may be cut short
  }

  __device__ C weight(int t) const {
    return a.p.weights.data == nullptr ? C(1) : rows_of<const C>(a.p.weights, batch, 0).at(t, 0);
  }
  __device__ C mass(int height, int n) const { return height > 0 ? a.mass[node(height, n)] : weight(n); }
  __device__ C kappa(int height, int n) const {
    if (height > 0) return a.kappa[node(height, n)];
    return a.p.key_bias.data == nullptr ? C(0) : rows_of<const C>(a.p.key_bias, batch, key_head).at(n, 0);
  }
  // What an entry adds to all scores; -inf hides it.
  __device__ C term(int height, int n) const {
    if (height > 0) return a.term[node(height, n)];
    if (a.p.weights.data == nullptr) return kappa(0, n);
    const C w = weight(n);
    return w > 0 ? log(w) + kappa(0, n) : -static_cast<C>(INFINITY);
  }
  __device__ int64_t key_row(int64_t at, int level) const { return (at * a.p.levels + level) * a.p.head_size; }
  __device__ C k(int height, int n, int level, int c) const {
    return height > 0 ? a.k[key_row(node(height, n), level) + c]
                      : static_cast<C>(rows_of<const S>(a.p.k[level], batch, key_head).at(n >> level, c));
  }
  __device__ C v(int height, int n, int c) const {
    return height > 0 ? a.v[node(height, n) * a.p.value_size + c]
                      : static_cast<C>(rows_of<const S>(a.p.v, batch, key_head).at(n, c));
  }
  // Whether a row of a level stands for a token that counts; others may hold anything.
  __device__ bool is_real(int level, int row) const {
    if (a.p.weights.data == nullptr) return true;
    const int64_t end = min(static_cast<int64_t>(tokens), static_cast<int64_t>(row + 1) << level);
    for (int64_t t = static_cast<int64_t>(row) << level; t < end; ++t) {
      if (weight(static_cast<int>(t)) > 0) return true;
    }
    return false;
  }

  // The entries that a query below `ancestor`, a node of this height, sees.
  __device__ SeenEntries seen(int height, int ancestor) const {
    const int b = a.p.branching, near = a.heights.near, family = a.heights.branching.quotient(ancestor);
    const int first = max(0, family - near + 1) * b;
    if (!a.p.both_sides) return {first, height == 0 ? ancestor + 1 : ancestor - near + 1, 0, 0};
    const int last = family + near - 1;  // family
    const int all = count(height);
    if (all == 0) return {0, 0, 0, 0};
    const int end = last > a.heights.branching.quotient(all - 1) ? all : (last + 1) * b;
    const bool hole = height > 0;
    return {first, min(end, all), hole ? ancestor - near + 1 : 0, hole ? ancestor + near : 0};
  }
  // Queries that see one of the entries `from` .. `to`: first .. end - 1; not all of these do.
  __device__ int first_query(int height, int from) const {
    const int64_t near = a.heights.near, b = a.p.branching;
    const int64_t node = a.p.both_sides ? max(int64_t{0}, from / b - near + 1) * b : height == 0 ? from : from + near;
    return static_cast<int>(min(static_cast<int64_t>(tokens), node * size(height)));
  }
  __device__ int end_query(int height, int to) const {
    const int64_t end = (to / a.p.branching + static_cast<int64_t>(a.heights.near)) * a.p.branching * size(height);
    return static_cast<int>(min(end, static_cast<int64_t>(tokens)));
  }

  // The part that entry n is of its parent's means: w / |A|, and the parent's node; 0 where the parent is not seen.
  struct Parent {
    C share;
    int64_t node;
  };
  __device__ Parent parent(int height, int n) const {
    const int above = a.heights.branching.quotient(n);
    if (height + 1 >= a.heights.count || above >= count(height + 1)) return {C(0), 0};
    const int64_t at = node(height + 1, above);
    const C w = mass(height, n);
    return {w > 0 ? w / a.mass[at] : C(0), at};
  }

  // Gradients of an entry, by channel: dk of a level, then, with level 0, dv and dkappa. What entry n has of its
  // parent's, which is done before it: heights are done from the top down.
  __device__ C from_parent(int height, int n, int level, int channel) const {
    const Parent above = parent(height, n);
    if (!(above.share > 0)) return C(0);
    const int keys = a.p.head_size, both = keys + a.p.value_size;
    return above.share * (channel < keys   ? a.dk[key_row(above.node, level) + channel]
                          : channel < both ? a.dv[above.node * a.p.value_size + channel - keys]
                                           : a.dkappa[above.node]);
  }
  // row: a node, or, of the leaves, a row of the level.
  __device__ void store_gradient(int height, int row, int level, int channel, C x) const {
    const int keys = a.p.head_size, both = keys + a.p.value_size;
    if (height > 0) {
      const int64_t at = node(height, row);
      (channel < keys   ? a.dk[key_row(at, level) + channel]
       : channel < both ? a.dv[at * a.p.value_size + channel - keys]
                        : a.dkappa[at]) = x;
    } else if (channel < keys) {
      rows_of<S>(a.g.dk[level], batch, key_head).at(row, channel) = static_cast<S>(x);
    } else if (channel < both) {
      rows_of<S>(a.g.dv, batch, key_head).at(row, channel - keys) = static_cast<S>(x);
    } else {
      if (a.g.dkey_bias.data != nullptr) rows_of<C>(a.g.dkey_bias, batch, key_head).at(row, 0) = x;
      if (a.leaf_dkappa != nullptr) a.leaf_dkappa[leaf(row)] = x;
    }
  }
};

// One sequence and query head.
template <class S>
struct StreamHead : StreamKeys<S> {
  using C = typename ComputeOf<S>::Type;
  using StreamKeys<S>::a;
  int head, stream;
  int64_t line;  // where lse and the like of the tokens begin

  // All query streams, one after the other.
  __device__ StreamHead(const StreamArgs<S>& args, int query_stream)
      : StreamKeys<S>(args, args.heights.heads.quotient(query_stream),
                      args.heights.group.quotient(args.heights.heads.remainder(query_stream))),
        head(args.heights.heads.remainder(query_stream)),
        stream(query_stream),
        line(stream_line(args.p, this->batch, head)) {}
  // The heads of a group, one after the other, which have these keys.
  __device__ StreamHead(const StreamKeys<S>& keys, int in_group)
      : StreamKeys<S>(keys),
        head(keys.key_head * static_cast<int>(keys.a.heights.group.value) + in_group),
        stream(keys.batch * static_cast<int>(keys.a.p.heads) + head),
        line(stream_line(keys.a.p, keys.batch, head)) {}

  __device__ int64_t token(int t) const { return line + t; }
  // What dropout multiplies the weight of query i for entry n of a height by.
  __device__ C kept(int i, int height, int n) const {
    const uint64_t key = dropout_key(a.p.dropout.state);
    return is_entry_kept(key, a.drop_threshold, this->batch, head, i, height, n) ? a.kept_factor : C(0);
  }
  __device__ bool has_dropout() const { return a.drop_threshold > 0; }
  __device__ C level_weight(int level) const {
    return a.p.level_weights == nullptr ? C(1) : static_cast<const C*>(a.p.level_weights)[head * a.p.levels + level];
  }
  // Index into the position table of node n for a query below `ancestor`, both of this height; -1 for none. It is the
  // sum of a part of the query and one of the node.
  __device__ int64_t position(int height, int ancestor, int n) const {
    if (!has_positions(height) || (height == 0 && ancestor == n)) return -1;
    return position_row(height, ancestor) + position_column(n);
  }
  __device__ bool has_positions(int height) const { return a.p.positions != nullptr && height < a.p.heights; }
  __device__ int64_t position_row(int height, int ancestor) const {
    const int b = a.p.branching, family = a.heights.branching.quotient(ancestor);
    const int64_t distances = a.p.both_sides ? 2 * int64_t{a.p.near} - 1 : a.p.near;
    const int64_t table = (head * a.p.heights + height) * distances + family + (a.p.both_sides ? a.p.near - 1 : 0);
    return (table * b + (ancestor - family * b)) * b;
  }
  __device__ int position_column(int n) const {
    const int b = a.p.branching, family = a.heights.branching.quotient(n);
    return n - family * b - family * b * b;
  }
  __device__ C position_bias(int64_t at) const { return at < 0 ? C(0) : static_cast<const C*>(a.p.positions)[at]; }
};

// Blocks that find no query leave no part behind, so that parts of packed sequences start at zero.
template <class S>
cudaError_t clear_level_parts(const StreamArgs<S>& a, cudaStream_t stream) {
  if (a.p.lengths == nullptr || a.level_parts == nullptr) return cudaSuccess;
  const int64_t parts = a.p.batch * a.p.heads * a.p.levels * a.p.tokens;
  return cudaMemsetAsync(a.level_parts, 0, sizeof(*a.level_parts) * static_cast<size_t>(parts), stream);
}

// The gradient of the position table, as it is summed.
template <class S>
FixedPointTable position_gradients(const StreamArgs<S>& a) {
  const int64_t entries = stream_position_entries(a.p);
  return {entries > 0 ? a.positions : nullptr, entries};
}

}  // namespace strata::cuda
