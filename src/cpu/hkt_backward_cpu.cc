// HKT backward (docs/MATH.md, section 1.4): one tile of queries against one tile of keys. hkt_backward_pass.h says who
// adds what to which gradients.
#include "cpu/hkt_backward_pass.h"
#include "cpu/hkt_cpu_kernels.h"

namespace strata::STRATA_ISA {
namespace {

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

template <class S>
struct BackwardPass {
  using T = typename Compute<S>::Type;
  static constexpr int64_t kWidthStep = kLanes<T>, kSpareRows = 0;

  BackwardPass(const HktProblem& p, Arena& arena) : space(p, arena) {}

  void begin(const Head<S>&, int64_t, int64_t) {}

  void add_queries(const Head<S>& head, const HktOutputs& outputs, const HktGradients& g, int64_t i0,
                   KeyGradients<T>& grads, double* dweights) {
    const HktProblem& p = head.p;
    pack_backward(head, outputs, g, head.b, head.h, i0, space.tile);
    for (int l = 0; l < p.levels; ++l) {
      const int64_t lanes = level_lanes<T>(l);
      const T factor = static_cast<T>(p.scale) * head.weights[l];
      pack_rows<S, T>(head.q[l], i0 >> l, level_rows(head.queries(i0), l), p.head_size, factor, space.queries[l], lanes,
                      space.key_width);
      if (starts_block(i0, l)) memset(space.dq[l], 0, sizeof(T) * p.head_size * lanes);
    }
    const HktRange keys = head.key_range(i0);
    for (int64_t j0 = keys.begin; j0 < keys.end; j0 += kTile) {
      const int64_t n = min(kTile, keys.end - j0);
      probability_and_dscore(head, i0, j0, n, space.tile);
      add_tile(p, j0, n, space, grads);
    }
    finish_queries(head, g, i0, space.dq, level_lanes<T>, dweights);
  }

  BackwardSpace<T> space;
};

}  // namespace

bool hkt_backward_cpu(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g, int threads) {
  return with_storage(p.dtype, [&](auto storage) {
    using S = decltype(storage);
    return backward<S, BackwardPass<S>>(p, outputs, g, threads);
  });
}

}  // namespace strata::STRATA_ISA
