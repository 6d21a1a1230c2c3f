// HKT backward with products of bfloat16 (hkt_pair_tile.h). P and dS are rounded before they are multiplied; scores,
// sums over blocks and gradients are float32.
//
//   dP = V dO^T, dV += P^T dO, and at every level dk += (s a G)^T q and dq += G k, with A and B of each in this order.
#include "cpu/hkt_backward_pass.h"
#include "cpu/hkt_pair_kernels.h"
#include "cpu/hkt_pair_tile.h"

namespace strata::STRATA_ISA {
namespace {

// Queries of a tile at level l as the terms of a sum.
constexpr int64_t query_lines(int l) { return (kTile >> l) > kLineStep ? kTile >> l : kLineStep; }

struct PairBackwardPass {
  static constexpr int64_t kWidthStep = kPairLanes, kSpareRows = kTileRows;

  PairBackwardPass(const HktProblem& p, Arena& arena)
      : panel(p, p.key_tokens, true, arena),
        score(p, arena),
        room(p, arena),
        value_width(line_width(p.value_size)),
        dout_channels(arena.take<BFloat16>(value_width * kTile)),
        dout_rows(arena.take<BFloat16>(kTile * value_width)),
        weights(arena.take<BFloat16>(kPairKeys * kTile)),
        lines(arena.take<BFloat16>(kPairKeys * kTile)),
        pairs(arena.take<BFloat16>(kPairKeys * kTile)),
        lse(arena.take<float>(kTile)),
        row_term(arena.take<float>(kTile)),
        kept(p.dropout.probability > 0 ? arena.take<float>(kPairKeys * kTile) : nullptr) {
    for (int l = 0; l < p.levels; ++l) {
      query_rows[l] = arena.take<BFloat16>(query_lines(l) * panel.key_width);
      dq[l] = arena.take<float>(panel.key_width * pair_lanes(l));
      block_sum[l] = arena.take<float>(pair_rows(l) * pair_lanes(l));
    }
  }

  void begin(const PairHead& any, int64_t begin, int64_t end) {
    const int64_t real = min(any.length, end) - begin;
    if (real <= 0) return;
    const HktRange range = pair_key_range(any, begin, real);
    panel.pack(any, range.begin, range.end);
  }

  void add_queries(const PairHead& head, const HktOutputs& outputs, const HktGradients& g, int64_t i0,
                   KeyGradients<float>& grads, double* dweights) {
    const HktProblem& p = head.p;
    pack(head, outputs, g, i0);
    const HktRange keys = pair_key_range(head, i0, head.queries(i0));
    for (int64_t j0 = keys.begin; j0 < keys.end; j0 += kPairKeys) {
      const int64_t n = min(kPairKeys, keys.end - j0);
      weights_and_dscores(head, i0, j0, n);
      float* dv = grads.dv + j0 * grads.value_width;
      pair_gemm({weights, kTile}, {dout_rows, 2 * value_width}, dv, grads.value_width, n, grads.value_width, kTile,
                StartFrom<float>{dv, grads.value_width});
      for (int l = 0; l < p.levels; ++l) add_level(head, l, j0, n, grads);
    }
    finish_queries(head, g, i0, dq, pair_lanes, dweights);
  }

  // The operands of a tile of queries.
  void pack(const PairHead& head, const HktOutputs& outputs, const HktGradients& g, int64_t i0) {
    const HktProblem& p = head.p;
    score.pack(head, i0);
    for (int l = 0; l < p.levels; ++l) {
      pack_lines(head.q[l], i0 >> l, level_rows(head.queries(i0), l), p.head_size, score.lines, query_lines(l),
                 panel.key_width);
      pair_lines(score.lines, query_lines(l), panel.key_width, query_rows[l]);
      if (starts_block(i0, l)) memset(dq[l], 0, sizeof(float) * panel.key_width * pair_lanes(l));
    }
    load_row_terms(head, outputs, g, i0, lse, row_term);
    const Rows<const BFloat16> dout = rows_of<BFloat16>(g.dout, head.b, head.h);
    for (int64_t i = 0; i < kTile; ++i)
      pack_line(dout, i0 + i, lse[i] != kInfinity<float>, p.value_size, score.lines + i * value_width, value_width);
    pair_channels(score.lines, kTile, value_width, dout_channels, kTile);
    pair_lines(score.lines, kTile, value_width, dout_rows);
  }

  // P, as A of dV, and dS: as float in block_sum[0], as A of dk and as B of dq.
  void weights_and_dscores(const PairHead& head, int64_t i0, int64_t j0, int64_t n) {
    const HktProblem& p = head.p;
    bool masked = false;
    const PairSum products = score.multiply(head, panel, j0, n, room);
    const PairSum scores = finish_scores(head, i0, j0, n, products, room.level[0], &masked);
    pair_gemm(panel.values(j0), {dout_channels, 2 * kTile}, block_sum[0], kTile, n, kTile, pair_depth(p.value_size),
              StartZero<float>());
    const DropoutTile<float> dropout(p.dropout, head.b, head.h);
    if (dropout.active()) write_factors(dropout, i0, j0, n, kept);
    const float* factors = dropout.active() ? kept : nullptr;
    const float level_factor = static_cast<float>(p.scale) * head.weights[0];
    for (int64_t j = 0; j < n; j += 2) {
      for (int64_t x = 0; x < kTile; x += kLanes<float>) {
        const int64_t at = j * kTile + x;
        Vec<float> start = -load(lse + x);
        if (scores.coarse != nullptr) start += scores.upsampled(j, x);
        const Vec<float> even = weight_and_dscore(scores, at, x, start, factors, level_factor);
        const bool last = j + 1 == n;
        const Vec<float> odd =
            last ? Vec<float>{} : weight_and_dscore(scores, at + kTile, x, start, factors, level_factor);
        store_pairs(pairs + at + x, even, odd);
      }
    }
    clear_rest(n, kTile, kTile);
    memset(weights + n * kTile, 0, sizeof(BFloat16) * (round_up(n, kRowStep) - n) * kTile);
  }

  // Of one key and a vector of queries; start: the coarse scores less lse. Returns dS.
  Vec<float> weight_and_dscore(const PairSum& scores, int64_t at, int64_t x, Vec<float> start, const float* factors,
                               float level_factor) {
    Vec<float> P = exp2_short(load(scores.fine + at) * scores.factor + start);
    Vec<float> dP = load(block_sum[0] + at);
    if (factors != nullptr) dP *= load(factors + at);
    const Vec<float> dS = P * (dP - load(row_term + x));
    if (factors != nullptr) P *= load(factors + at);
    store_line(weights + at, P);
    store_line(lines + at, dS * level_factor);
    store(block_sum[0] + at, dS);
    return dS;
  }

  // Zeros in the rows of `lines` and `pairs` that products read beyond the last key.
  void clear_rest(int64_t rows, int64_t width, int64_t lanes) {
    memset(lines + rows * width, 0, sizeof(BFloat16) * (round_up(rows, kRowStep) - rows) * width);
    const int64_t paired = round_up(rows, 2);
    memset(pairs + paired * lanes, 0, sizeof(BFloat16) * (pair_depth(rows) - paired) * lanes);
  }

  // G^(l) from G^(l-1): as float, as A of dk, times s a_l, and as B of dq.
  void coarsen(const PairHead& head, int l, int64_t n) {
    const int64_t rows = level_rows(n, l), lanes = pair_lanes(l), width = query_lines(l);
    sum_blocks<float>(block_sum[l - 1], pair_lanes(l - 1), level_rows(n, l - 1), block_sum[l], lanes);
    const float level_factor = static_cast<float>(head.p.scale) * head.weights[l];
    for (int64_t r = 0; r < rows; r += 2) {
      const bool last = r + 1 == rows;
      for (int64_t x = 0; x < lanes; x += kLanes<float>) {
        const float* from = block_sum[l] + r * lanes + x;
        const Vec<float> even = load(from), odd = last ? Vec<float>{} : load(from + lanes);
        store_line(lines + r * width + x, even * level_factor);
        if (!last) store_line(lines + (r + 1) * width + x, odd * level_factor);
        store_pairs(pairs + r * lanes + 2 * x, even, odd);
      }
      for (int64_t row = r; row < min(rows, r + 2); ++row)
        memset(lines + row * width + lanes, 0, sizeof(BFloat16) * (width - lanes));
    }
    clear_rest(rows, width, lanes);
  }

  void add_level(const PairHead& head, int l, int64_t j0, int64_t n, KeyGradients<float>& grads) {
    if (l > 0) coarsen(head, l, n);
    const int64_t rows = level_rows(n, l), lanes = pair_lanes(l), width = grads.key_width;
    float* dk = grads.dk[l] + (j0 >> l) * width;
    pair_gemm({lines, query_lines(l)}, {query_rows[l], 2 * panel.key_width}, dk, width, rows, width,
              pair_depth(level_rows(kTile, l)), StartFrom<float>{dk, width});
    pair_gemm(panel.keys_transposed(l, j0), {pairs, 2 * lanes}, dq[l], lanes, head.p.head_size, lanes, pair_depth(rows),
              StartFrom<float>{dq[l], lanes});
  }

  KeyPanel panel;
  PairScores score;
  ScoreRoom room;
  int64_t value_width;
  BFloat16* dout_channels;  // (value_width / 2, kTile, 2); zero for queries that see no key
  BFloat16* dout_rows;      // (kTile / 2, value_width, 2)
  BFloat16* weights;        // (keys, kTile): P
  BFloat16* lines;          // (rows, query_lines): s a_l G of the current level
  BFloat16* pairs;          // (rows / 2, lanes, 2): G of the current level
  float *lse, *row_term, *kept;
  BFloat16* query_rows[kMaxLevels];  // (query_lines / 2, key_width, 2)
  float* dq[kMaxLevels];             // (key_width, lanes): sum_n G_mn k_n, before scale * a_l
  float* block_sum[kMaxLevels];      // G^(l): (rows, lanes); that of level 0 is dP first
};

bool has_non_finite(Rows<const BFloat16> rows, int64_t count, int64_t channels) {
  for (int64_t t = 0; t < count; ++t) {
    if (rows.channel_stride == 1) {
      if (any_non_finite(&rows.at(t, 0), channels)) return true;
      continue;
    }
    for (int64_t c = 0; c < channels; ++c)
      if (any_non_finite(&rows.at(t, c), 1)) return true;
  }
  return false;
}

// Whether an operand of a head is infinite or NaN.
bool has_non_finite(const PairHead& head, const HktOutputs& outputs, const HktGradients& g) {
  const HktProblem& p = head.p;
  for (int l = 0; l < p.levels; ++l) {
    if (has_non_finite(head.q[l], level_rows(head.length, l), p.head_size)) return true;
    if (has_non_finite(head.k[l], level_rows(head.key_length, l), p.head_size)) return true;
  }
  if (has_non_finite(head.v, head.key_length, p.value_size)) return true;
  if (has_non_finite(rows_of<BFloat16>(g.dout, head.b, head.h), head.length, p.value_size)) return true;
  const float* lse = static_cast<const float*>(outputs.lse) + head.line;
  const float* dlse = g.dlse == nullptr ? nullptr : static_cast<const float*>(g.dlse) + head.line;
  for (int64_t i = 0; i < head.length; ++i) {
    const float sum = lse[i] == -kInfinity<float> ? 0.0f : dlse == nullptr ? lse[i] : lse[i] - dlse[i];
    if (!(sum * 0.0f == 0.0f)) return true;
  }
  return false;
}

}  // namespace

bool hkt_backward_pairs_take(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g, int threads) {
  const bool masked = p.bias.data != nullptr || p.window_right < p.key_tokens - 1 || p.window_left < p.tokens - 1;
  if (!masked) return true;
  int found = 0;
  parallel_items(p.batch * p.heads, threads, [&](int64_t item, int) {
    if (has_non_finite(PairHead(p, item / p.heads, item % p.heads), outputs, g)) __atomic_store_n(&found, 1, 0);
  });
  return found == 0;
}

bool hkt_backward_pairs(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g, int threads) {
  return backward<BFloat16, PairBackwardPass>(p, outputs, g, threads);
}

}  // namespace strata::STRATA_ISA
