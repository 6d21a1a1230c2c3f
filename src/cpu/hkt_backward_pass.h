// What the backward passes share (docs/MATH.md, section 1.4). A work item owns one key head of one sequence and a run
// of query tiles. It processes the tiles in order and adds into its own dk and dv, so no two threads ever add to the
// same number. If there are too few heads to keep all threads busy, the queries of a head are split into several items,
// whose dk and dv are then summed in order. The split depends only on the shape, never on the number of threads.
//
// A Pass is the work space of a thread and knows how one tile of queries is processed:
//   Pass(p, arena), kWidthStep and kSpareRows of dk and dv
//   begin(any head of the group, first query, end of the queries): before the tiles of an item
//   add_queries(head, outputs, g, i0, dk and dv, dweights): one tile
#pragma once

#include "cpu/hkt_backward_tile.h"
#include "cpu/hkt_bias_cpu.h"
#include "cpu/parallel.h"
#include "cpu/product_scope.h"

namespace strata::STRATA_ISA {

constexpr int64_t kEnoughItems = 8;

struct Cut {
  int64_t chunks;           // items per key head
  int64_t tokens_per_item;  // a multiple of the tile and of the coarsest block, so that no coarse query is split
};

inline Cut cut_queries(const HktProblem& p) {
  const int64_t step = max(kTile, int64_t{1} << (p.levels - 1));
  const int64_t steps = max(1, (p.tokens + step - 1) / step);
  const int64_t wanted = min(steps, (kEnoughItems + p.batch * p.key_heads - 1) / (p.batch * p.key_heads));
  const int64_t steps_per_item = (steps + wanted - 1) / wanted;
  return {(steps + steps_per_item - 1) / steps_per_item, steps_per_item * step};
}

// dk of every level and dv of one item, rows padded to multiples of `step` numbers, with `spare` rows after the last.
template <class T>
struct KeyGradients {
  KeyGradients(const HktProblem& p, int64_t step, int64_t spare_, Arena& arena)
      : key_width(round_up(p.head_size, step)), value_width(round_up(p.value_size, step)), spare(spare_) {
    for (int l = 0; l < p.levels; ++l) dk[l] = arena.take<T>((level_rows(p.key_tokens, l) + spare) * key_width);
    dv = arena.take<T>((p.key_tokens + spare) * value_width);
  }

  void clear(int levels, int64_t keys) {
    for (int l = 0; l < levels; ++l) memset(dk[l], 0, sizeof(T) * (level_rows(keys, l) + spare) * key_width);
    memset(dv, 0, sizeof(T) * (keys + spare) * value_width);
  }

  int64_t key_width;
  int64_t value_width;
  int64_t spare;
  T* dk[kMaxLevels];
  T* dv;
};

// G^(l) from G^(l-1): sums over 2 x 2 blocks. `rows` counts the finer rows; an odd last one has no partner.
template <class T>
void sum_blocks(const T* fine, int64_t fine_lanes, int64_t rows, T* coarse, int64_t lanes) {
  for (int64_t r = 0; r < rows; r += 2) {
    const T* first = fine + r * fine_lanes;
    for (int64_t x = 0; x < lanes; x += kLanes<T>) {
      const bool has_a = 2 * x < fine_lanes, has_b = 2 * x + kLanes<T> < fine_lanes;
      Vec<T> a = has_a ? load(first + 2 * x) : Vec<T>{};
      Vec<T> b = has_b ? load(first + 2 * x + kLanes<T>) : Vec<T>{};
      if (r + 1 < rows) {
        if (has_a) a += load(first + fine_lanes + 2 * x);
        if (has_b) b += load(first + fine_lanes + 2 * x + kLanes<T>);
      }
      store(coarse + (r >> 1) * lanes + x, add_lane_pairs<T>(a, b));
    }
  }
}

// Whether a block of level l starts, or ends, with the tile of queries from i0 on.
inline bool starts_block(int64_t i0, int l) { return (i0 & ((int64_t{1} << l) - 1)) == 0; }
inline bool ends_block(int64_t i0, int l, int64_t length) {
  return starts_block(i0 + kTile, l) || i0 + kTile >= length;
}

// dq^(l) = s a_l (G k) and da_l += s <q, G k> for the coarse rows that end with this tile. sums[l]: G k of level l,
// (channels, lanes).
template <class S, class T>
void finish_queries(const Head<S>& head, const HktGradients& g, int64_t i0, T* const* sums, int64_t (*lanes_of)(int),
                    double* dweights) {
  const HktProblem& p = head.p;
  for (int l = 0; l < p.levels; ++l) {
    if (!ends_block(i0, l, head.length)) continue;
    const Rows<S> dq = rows_of<S>(g.dq[l], head.b, head.h);
    const int64_t first = i0 >> l;
    const int64_t count = level_rows(head.queries(i0), l);
    const int64_t lanes = lanes_of(l);
    const T factor = static_cast<T>(p.scale) * head.weights[l];
    double product = 0;
    for (int64_t x = 0; x < count; ++x) {
      for (int64_t c = 0; c < p.head_size; ++c) {
        const T sum = sums[l][c * lanes + x];
        // A row without an allowed pair adds nothing, whatever its query holds.
        if (sum != T(0)) product += static_cast<double>(sum) * static_cast<double>(widen(head.q[l].at(first + x, c)));
        narrow(factor * sum, &dq.at(first + x, c));
      }
    }
    dweights[l] += p.scale * product;
  }
}

// The rows of a gradient that belong to padding.
template <class S>
void clear_rows(Rows<S> rows, int64_t begin, int64_t end, int64_t channels) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t c = 0; c < channels; ++c) narrow(typename Compute<S>::Type(0), &rows.at(t, c));
}

template <class S, class T>
void write_rows(const T* from, int64_t width, Rows<S> to, int64_t count, int64_t channels) {
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < channels; ++c) narrow(from[t * width + c], &to.at(t, c));
}

template <class S, class T>
void write_key_gradients(const HktProblem& p, const HktGradients& g, int64_t b, int64_t kh,
                         const KeyGradients<T>& grads) {
  const int64_t keys = stored_rows(key_side(p), b);
  for (int l = 0; l < p.levels; ++l) {
    write_rows(grads.dk[l], grads.key_width, rows_of<S>(g.dk[l], b, kh), level_rows(keys, l), p.head_size);
  }
  write_rows(grads.dv, grads.value_width, rows_of<S>(g.dv, b, kh), keys, p.value_size);
}

template <class S, class Pass>
bool backward(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g, int threads) {
  using T = typename Compute<S>::Type;
  const Cut cut = cut_queries(p);
  const int64_t key_heads = p.batch * p.key_heads;
  const int64_t items = key_heads * cut.chunks;
  const int64_t group = p.heads / p.key_heads;

  Arena measure(nullptr);
  Pass sized(p, measure);
  const Workspace tiles(measure.used(), threads);
  Arena measure_grads(nullptr);
  const auto gradients_in = [&](Arena& arena) { return KeyGradients<T>(p, Pass::kWidthStep, Pass::kSpareRows, arena); };
  gradients_in(measure_grads);
  // With one item per key head, its gradients are written immediately, and one buffer per thread is enough.
  const Workspace key_gradients(measure_grads.used(), cut.chunks == 1 ? threads : items);
  const Workspace weight_gradients(items * group * p.levels * static_cast<int64_t>(sizeof(double)), 1);
  if (!tiles.ok() || !key_gradients.ok() || !weight_gradients.ok()) return false;
  double* dweights = static_cast<double*>(weight_gradients.slice(0));
  memset(dweights, 0, sizeof(double) * items * group * p.levels);

  parallel_items(items, threads, [&](int64_t item, int thread) {
    const int64_t b = item / cut.chunks / p.key_heads;
    const int64_t kh = item / cut.chunks % p.key_heads;
    const int64_t rows = stored_rows(query_side(p), b);
    const int64_t begin = min(rows, item % cut.chunks * cut.tokens_per_item);
    const int64_t end = min(rows, begin + cut.tokens_per_item);
    Arena arena(tiles.slice(thread));
    Pass pass(p, arena);
    [[maybe_unused]] const ProductScope scope;
    Arena grads_arena(key_gradients.slice(cut.chunks == 1 ? thread : item));
    KeyGradients<T> grads = gradients_in(grads_arena);
    grads.clear(p.levels, stored_rows(key_side(p), b));
    pass.begin(Head<S>(p, b, kh * group), begin, end);
    for (int64_t member = 0; member < group; ++member) {
      const int64_t h = kh * group + member;
      const Head<S> head(p, b, h);
      for (int64_t i0 = begin; i0 < min(end, head.length); i0 += kTile) {
        pass.add_queries(head, outputs, g, i0, grads, dweights + (item * group + member) * p.levels);
      }
      for (int l = 0; l < p.levels; ++l) {
        const int64_t real = level_rows(min(max(head.length, begin), end), l);
        clear_rows(rows_of<S>(g.dq[l], b, h), real, level_rows(end, l), p.head_size);
      }
    }
    if (cut.chunks == 1) write_key_gradients<S>(p, g, b, kh, grads);
  });

  if (cut.chunks > 1) {
    parallel_items(key_heads, threads, [&](int64_t key_head, int) {
      T* total = static_cast<T*>(key_gradients.slice(key_head * cut.chunks));
      const int64_t numbers = measure_grads.used() / static_cast<int64_t>(sizeof(T));
      for (int64_t chunk = 1; chunk < cut.chunks; ++chunk) {
        const T* part = static_cast<const T*>(key_gradients.slice(key_head * cut.chunks + chunk));
        for (int64_t at = 0; at < numbers; ++at) total[at] += part[at];
      }
      Arena arena(total);
      write_key_gradients<S>(p, g, key_head / p.key_heads, key_head % p.key_heads, gradients_in(arena));
    });
  }

  for (int64_t h = 0; h < p.heads; ++h) {
    for (int l = 0; l < p.levels; ++l) {
      double sum = 0;
      for (int64_t b = 0; b < p.batch; ++b) {
        for (int64_t chunk = 0; chunk < cut.chunks; ++chunk) {
          const int64_t item = (b * p.key_heads + h / group) * cut.chunks + chunk;
          sum += dweights[(item * group + h % group) * p.levels + l];
        }
      }
      static_cast<T*>(g.dweights)[h * p.levels + l] = static_cast<T>(sum);
    }
  }
  return g.dbias.data == nullptr || bias_gradient<S>(p, outputs, g, threads);
}

}  // namespace strata::STRATA_ISA
