// HKT backward (docs/MATH.md, section 1.4). A work item owns one key head of one sequence and a run of query tiles. It
// processes the tiles in order and adds into its own dk and dv, so no two threads ever add to the same number. If there
// are too few heads to keep all threads busy, the queries of a head are split into several items, whose dk and dv are
// then summed in order. The split depends only on the shape, never on the number of threads.
#include "cpu/hkt_backward_tile.h"
#include "cpu/hkt_bias_cpu.h"
#include "cpu/hkt_cpu_kernels.h"
#include "cpu/parallel.h"

namespace strata::STRATA_ISA {
namespace {

constexpr int64_t kEnoughItems = 8;

struct Cut {
  int64_t chunks;           // items per key head
  int64_t tokens_per_item;  // a multiple of the tile and of the coarsest block, so that no coarse query is split
};

Cut cut_queries(const HktProblem& p) {
  const int64_t step = max(kTile, int64_t{1} << (p.levels - 1));
  const int64_t steps = max(1, (p.tokens + step - 1) / step);
  const int64_t wanted = min(steps, (kEnoughItems + p.batch * p.key_heads - 1) / (p.batch * p.key_heads));
  const int64_t steps_per_item = (steps + wanted - 1) / wanted;
  return {(steps + steps_per_item - 1) / steps_per_item, steps_per_item * step};
}

// dk of every level and dv of one item, rows padded to whole vectors.
template <class T>
struct KeyGradients {
  KeyGradients(const HktProblem& p, Arena& arena)
      : key_width(round_up(p.head_size, kLanes<T>)), value_width(round_up(p.value_size, kLanes<T>)) {
    for (int l = 0; l < p.levels; ++l) dk[l] = arena.take<T>(level_rows(p.key_tokens, l) * key_width);
    dv = arena.take<T>(p.key_tokens * value_width);
  }

  void clear(int levels, int64_t keys) {
    for (int l = 0; l < levels; ++l) memset(dk[l], 0, sizeof(T) * level_rows(keys, l) * key_width);
    memset(dv, 0, sizeof(T) * keys * value_width);
  }

  int64_t key_width;
  int64_t value_width;
  T* dk[kMaxLevels];
  T* dv;
};

template <class T>
struct BackwardSpace {
  BackwardSpace(const HktProblem& p, Arena& arena) : tile(p, arena), key_width(round_up(p.head_size, kLanes<T>)) {
    for (int l = 0; l < p.levels; ++l) {
      const int64_t lanes = level_lanes<T>(l);
      queries[l] = arena.take<T>(lanes * key_width);
      dq[l] = arena.take<T>(p.head_size * lanes);
      block_sum[l] = l == 0 ? tile.dscore : arena.take<T>(level_rows(kTile, l) * lanes);
    }
    coarse_allowed = arena.take<uint8_t>(kTile * kTile);
  }

  BackwardTile<T> tile;
  int64_t key_width;
  T* queries[kMaxLevels];    // (lanes, key_width) of level l, times scale * a_l
  T* dq[kMaxLevels];         // (head_size, lanes): sum_n G_mn k_n, before scale * a_l
  T* block_sum[kMaxLevels];  // G^(l): (key rows, lanes)
  uint8_t* coarse_allowed;
};

// G^(l) from G^(l-1): sums over 2 x 2 blocks. `rows` counts the finer rows; an odd last one has no partner.
template <class T>
void sum_blocks(const T* fine, int64_t fine_lanes, int64_t rows, T* coarse, int64_t lanes) {
  for (int64_t r = 0; r < rows; r += 2) {
    const T* first = fine + r * fine_lanes;
    for (int64_t x = 0; x < lanes; x += kLanes<T>) {
      Vec<T> a = load(first + 2 * x);
      Vec<T> b = 2 * x + kLanes<T> < fine_lanes ? load(first + 2 * x + kLanes<T>) : Vec<T>{};
      if (r + 1 < rows) {
        a += load(first + fine_lanes + 2 * x);
        if (2 * x + kLanes<T> < fine_lanes) b += load(first + fine_lanes + 2 * x + kLanes<T>);
      }
      store(coarse + (r >> 1) * lanes + x, add_lane_pairs<T>(a, b));
    }
  }
}

// A coarse pair is allowed if any of its fine pairs is. Works in place: writes of the coarse table never pass reads of
// the fine one.
void coarsen_allowed(const uint8_t* fine, int64_t fine_lanes, int64_t rows, uint8_t* coarse, int64_t lanes) {
  for (int64_t r = 0; r < rows; r += 2) {
    for (int64_t x = 0; x < lanes; ++x) {
      uint8_t any = 0;
      for (int64_t dr = 0; dr < 2 && r + dr < rows; ++dr)
        for (int64_t dx = 0; dx < 2 && 2 * x + dx < fine_lanes; ++dx) any |= fine[(r + dr) * fine_lanes + 2 * x + dx];
      coarse[(r >> 1) * lanes + x] = any;
    }
  }
}

// C[j][c] += sum_i B[j][i] A[i][c] over the allowed pairs.
template <class T>
void careful_sum_over_queries(const T* b, const T* a, int64_t width, const uint8_t* allowed, int64_t keys,
                              int64_t lanes, T* c) {
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t i = 0; i < lanes; ++i) {
      if (allowed[j * lanes + i] == 0) continue;
      for (int64_t ch = 0; ch < width; ++ch) c[j * width + ch] += b[j * lanes + i] * a[i * width + ch];
    }
  }
}

// dV += P^T dO, then at every level dk += G^T (s a q) and dq += G k.
template <class T>
void add_tile(const HktProblem& p, int64_t j0, int64_t n, BackwardSpace<T>& space, KeyGradients<T>& grads) {
  const ScoreTile<T>& score = space.tile.score;
  T* dv = grads.dv + j0 * grads.value_width;
  const uint8_t* allowed = score.allowed;
  if (score.careful) {
    careful_sum_over_queries(score.scores[0], space.tile.dout, grads.value_width, allowed, n, kTile, dv);
  } else {
    gemm<T, Layout::kRowMajor>({score.scores[0], kTile}, {space.tile.dout, grads.value_width}, dv, grads.value_width, n,
                               grads.value_width / kLanes<T>, kTile, StartFrom<T>{dv, grads.value_width});
  }
  for (int l = 0; l < p.levels; ++l) {
    const int64_t rows = level_rows(n, l);
    const int64_t lanes = level_lanes<T>(l);
    const T* G = space.block_sum[l];
    T* dk = grads.dk[l] + (j0 >> l) * grads.key_width;
    if (l > 0) {
      const int64_t fine_rows = level_rows(n, l - 1);
      const int64_t fine_lanes = level_lanes<T>(l - 1);
      sum_blocks<T>(space.block_sum[l - 1], fine_lanes, fine_rows, space.block_sum[l], lanes);
      if (score.careful) {
        coarsen_allowed(allowed, fine_lanes, fine_rows, space.coarse_allowed, lanes);
        allowed = space.coarse_allowed;
      }
    }
    if (score.careful) {
      careful_sum_over_queries(G, space.queries[l], grads.key_width, allowed, rows, lanes, dk);
      careful_sum_over_keys(score.keys[l], G, allowed, rows, p.head_size, lanes, space.dq[l]);
      continue;
    }
    gemm<T, Layout::kRowMajor>({G, lanes}, {space.queries[l], grads.key_width}, dk, grads.key_width, rows,
                               grads.key_width / kLanes<T>, level_rows(kTile, l), StartFrom<T>{dk, grads.key_width});
    gemm<T, Layout::kTransposed>({score.keys[l].data, score.keys[l].step}, {G, lanes}, space.dq[l], lanes, p.head_size,
                                 lanes / kLanes<T>, rows, StartFrom<T>{space.dq[l], lanes});
  }
}

// dq^(l) = s a_l (G k) and da_l += s <q, G k> for the coarse rows that end with this tile.
template <class S, class T>
void finish_queries(const Head<S>& head, const HktGradients& g, int64_t b, int64_t h, int64_t i0,
                    BackwardSpace<T>& space, double* dweights) {
  const HktProblem& p = head.p;
  for (int l = 0; l < p.levels; ++l) {
    const int64_t block = int64_t{1} << l;
    const bool last_of_block = ((i0 + kTile) & (block - 1)) == 0 || i0 + kTile >= head.length;
    if (!last_of_block) continue;
    const Rows<S> dq = rows_of<S>(g.dq[l], b, h);
    const int64_t first = i0 >> l;
    const int64_t count = level_rows(head.queries(i0), l);
    const int64_t lanes = level_lanes<T>(l);
    const T factor = static_cast<T>(p.scale) * head.weights[l];
    double product = 0;
    for (int64_t x = 0; x < count; ++x) {
      for (int64_t c = 0; c < p.head_size; ++c) {
        const T sum = space.dq[l][c * lanes + x];
        // A row without an allowed pair adds nothing, whatever its query holds.
        if (sum != T(0)) product += static_cast<double>(sum) * static_cast<double>(widen(head.q[l].at(first + x, c)));
        narrow(factor * sum, &dq.at(first + x, c));
      }
    }
    dweights[l] += p.scale * product;
  }
}

template <class S, class T>
void backward_queries(const Head<S>& head, const HktOutputs& outputs, const HktGradients& g, int64_t b, int64_t h,
                      int64_t i0, BackwardSpace<T>& space, KeyGradients<T>& grads, double* dweights) {
  const HktProblem& p = head.p;
  pack_backward(head, outputs, g, b, h, i0, space.tile);
  for (int l = 0; l < p.levels; ++l) {
    const int64_t lanes = level_lanes<T>(l);
    const T factor = static_cast<T>(p.scale) * head.weights[l];
    pack_rows<S, T>(head.q[l], i0 >> l, level_rows(head.queries(i0), l), p.head_size, factor, space.queries[l], lanes,
                    space.key_width);
    const bool first_of_block = (i0 & ((int64_t{1} << l) - 1)) == 0;
    if (first_of_block) memset(space.dq[l], 0, sizeof(T) * p.head_size * lanes);
  }
  const HktRange keys = head.key_range(i0);
  for (int64_t j0 = keys.begin; j0 < keys.end; j0 += kTile) {
    const int64_t n = min(kTile, keys.end - j0);
    probability_and_dscore(head, i0, j0, n, space.tile);
    add_tile(p, j0, n, space, grads);
  }
  finish_queries(head, g, b, h, i0, space, dweights);
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

template <class S>
bool backward(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g, int threads) {
  using T = typename Compute<S>::Type;
  const Cut cut = cut_queries(p);
  const int64_t key_heads = p.batch * p.key_heads;
  const int64_t items = key_heads * cut.chunks;
  const int64_t group = p.heads / p.key_heads;

  Arena measure(nullptr);
  BackwardSpace<T> sized(p, measure);
  const Workspace tiles(measure.used(), threads);
  Arena measure_grads(nullptr);
  KeyGradients<T> sized_grads(p, measure_grads);
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
    BackwardSpace<T> space(p, arena);
    Arena grads_arena(key_gradients.slice(cut.chunks == 1 ? thread : item));
    KeyGradients<T> grads(p, grads_arena);
    grads.clear(p.levels, stored_rows(key_side(p), b));
    for (int64_t member = 0; member < group; ++member) {
      const int64_t h = kh * group + member;
      const Head<S> head(p, b, h);
      for (int64_t i0 = begin; i0 < min(end, head.length); i0 += kTile) {
        backward_queries(head, outputs, g, b, h, i0, space, grads, dweights + (item * group + member) * p.levels);
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
      write_key_gradients<S>(p, g, key_head / p.key_heads, key_head % p.key_heads, KeyGradients<T>(p, arena));
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

}  // namespace

bool hkt_backward_cpu(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g, int threads) {
  return with_storage(p.dtype, [&](auto storage) { return backward<decltype(storage)>(p, outputs, g, threads); });
}

}  // namespace strata::STRATA_ISA
