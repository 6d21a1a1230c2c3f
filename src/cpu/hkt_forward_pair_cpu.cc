// HKT forward with products of bfloat16 (hkt_pair_tile.h). A work item is a key head and a run of queries: its keys and
// values are packed once, for all tiles of all query heads that read them. A few tiles of queries go through the keys
// together, block by block: products are so fast that reading long keys from the outer caches would take longer.
//
// With AMX the products of the next tile of keys are done in parts between parts of a softmax: they are few
// instructions, and tiles multiply while vectors compute.
#include "cpu/hkt_forward_tile.h"
#include "cpu/hkt_pair_kernels.h"
#include "cpu/hkt_pair_tile.h"
#include "cpu/parallel.h"
#include "cpu/product_scope.h"

namespace strata::STRATA_ISA {
namespace {

constexpr int64_t kTogether = 4, kBlockKeys = 2048;  // tiles of queries, and keys of a block
static_assert(kBlockKeys % kPairKeys == 0);

struct QueryTile {
  QueryTile(const HktProblem& p, Arena& arena) : scores(p, arena), rows(line_width(p.value_size), arena) {}

  PairScores scores;
  OutputTile<float> rows;
  int64_t first;  // query
  HktRange keys;
};

#ifdef STRATA_TILES
constexpr bool kAhead = true;
#else
constexpr bool kAhead = false;
#endif

struct ForwardSpace {
  ForwardSpace(const HktProblem& p, int64_t keys, Arena& arena)
      : panel(p, keys, false, arena),
        tiles{{p, arena}, {p, arena}, {p, arena}, {p, arena}},
        rooms{{p, arena}, {p, arena}},
        weights(arena.take<BFloat16>(kPairKeys * kTile)),
        kept(p.dropout.probability > 0 ? arena.take<float>(kPairKeys * kTile) : nullptr),
        clean_values(arena.take<BFloat16>(line_width(p.value_size) * kPairKeys)) {}

  KeyPanel panel;
  QueryTile tiles[kTogether];
  ScoreRoom rooms[2];      // of this tile of keys and, with kAhead, of the next one
  BFloat16* weights;       // (kPairKeys / 2, kTile, 2): exp2(S - peak), rounded
  float* kept;             // (kPairKeys, kTile): the factors of dropout
  BFloat16* clean_values;  // values of a tile without what is infinite or NaN
};

constexpr int64_t kGroup = kTile / kLanes<float> < 4 ? kTile / kLanes<float> : 4;  // vectors processed together

// The products of a tile of keys, with kAhead in four parts: quarters of those of the finest level, between the coarse
// products and their mix.
class ProductsAhead {
 public:
  ProductsAhead(const PairHead& head, const QueryTile& tile, const KeyPanel& panel, const ScoreRoom (&rooms)[2])
      : head_(head), tile_(tile), panel_(panel), rooms_(rooms) {}

  // Those of the n keys from j0 on, which come next; n = 0: there are none.
  void begin(int64_t j0, int64_t n) {
    j0_ = j0, n_ = n, part_ = n > 0 ? 0 : kParts;
    if (kAhead) room_ ^= 1;
  }
  void step() {
    if (part_ == kParts) return;
    constexpr int64_t kRows = kPairKeys / kSplit, kColumns = kTile / kSplit;
    const ScoreRoom& room = rooms_[room_];
    const int64_t row = part_ / kSplit * kRows, lane = part_ % kSplit * kColumns;
    if (part_ == 0) tile_.scores.multiply_coarse(head_, panel_, j0_, n_, room);
    if (row < n_)
      tile_.scores.multiply_finest(head_, panel_, j0_, n_, {row, row + kRows}, {lane, lane + kColumns}, room);
    if (++part_ == kParts) tile_.scores.mix_coarse(head_, n_, room);
  }
  void finish() {
    while (part_ < kParts) step();
  }
  const ScoreRoom& room() const { return rooms_[room_]; }

  static constexpr int kSplit = kAhead ? 2 : 1, kParts = kSplit * kSplit;

 private:
  const PairHead& head_;
  const QueryTile& tile_;
  const KeyPanel& panel_;
  const ScoreRoom (&rooms_)[2];
  int64_t j0_ = 0, n_ = 0;
  int part_ = kParts, room_ = 0;
};

// The weights exp2(S - reference) of a group of queries and the keys begin .. end - 1 of n, as pairs of keys, and what
// they add to the sums. kept: the factors of dropout, which the sums do not know, or null.
template <bool kCoarse>
void exponentials(const PairSum& scores, int64_t begin, int64_t end, int64_t n, int64_t x0, const float* kept,
                  const Vec<float>* reference, Vec<float>* sum, BFloat16* weights) {
  for (int64_t j = begin; j < end; j += 2) {
    const bool last = j + 1 == n;  // there is no key j + 1
    const float* fine = scores.fine + j * kTile;
#pragma GCC unroll 4
    for (int64_t v = 0; v < kGroup; ++v) {
      const int64_t x = x0 + v * kLanes<float>;
      const Vec<float> start = kCoarse ? scores.upsampled(j, x) - reference[v] : -reference[v];
      Vec<float> even = exp2_short(load(fine + x) * scores.factor + start);
      Vec<float> odd = last ? Vec<float>{} : exp2_short(load(fine + kTile + x) * scores.factor + start);
      sum[v] += even + odd;
      if (kept != nullptr) {
        even *= load(kept + j * kTile + x);
        if (!last) odd *= load(kept + (j + 1) * kTile + x);
      }
      store_pairs(weights + j * kTile + 2 * x, even, odd);
    }
  }
}

// The largest scores of a group of queries, at least `peak`.
void raise_peaks(const PairSum& scores, int64_t n, int64_t x0, Vec<float>* peak) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t v = 0; v < kGroup; ++v) {
      const Vec<float> s = scores.at(j, x0 + v * kLanes<float>);
      peak[v] = s > peak[v] ? s : peak[v];  // skips NaN, which the exponential passes on
    }
  }
}

bool any_lane(VecInt<float> mask) {
  int32_t any = 0;
  for (int lane = 0; lane < kLanes<float>; ++lane) any |= mask[lane];
  return any != 0;
}

// Whether every query of a group has seen a key.
bool started(const Vec<float>* peak) {
  VecInt<float> none{};
  for (int64_t v = 0; v < kGroup; ++v) none |= peak[v] == splat(-kInfinity<float>);
  return !any_lane(none);
}

bool all_at_most(const Vec<float>* x, float limit) {
  VecInt<float> above{};
  for (int64_t v = 0; v < kGroup; ++v) above |= !(x[v] <= limit);  // so is NaN
  return !any_lane(above);
}

// online_softmax() of one tile. rows.peak is what was subtracted from scores so far. Most tiles keep it: only if the
// weights grow beyond 2^kFar, which is as exact as 1, or if a query has seen no key yet, are the maxima looked for and
// the weights made again. Earlier sums are then seldom multiplied by anything but 1.
template <bool kCoarse>
void softmax_pairs(const PairSum& scores, int64_t n, const float* kept, OutputTile<float>& rows, BFloat16* weights,
                   ProductsAhead& ahead) {
  constexpr float kMost = 256;
  constexpr int64_t kN = kLanes<float>, kPart = kPairKeys / ProductsAhead::kParts;
  for (int64_t x0 = 0; x0 < kTile; x0 += kGroup * kN) {
    Vec<float> peak[kGroup], reference[kGroup], sum[kGroup], factor[kGroup];
    for (int64_t v = 0; v < kGroup; ++v) {
      peak[v] = reference[v] = load(rows.peak + x0 + v * kN);
      factor[v] = splat(1.0f);
      sum[v] = Vec<float>{};
    }
    bool keeps = false;
    if (started(peak)) {
      for (int64_t j = 0; j < n; j += kPart) {
        if constexpr (kAhead) ahead.step();
        exponentials<kCoarse>(scores, j, min(n, j + kPart), n, x0, kept, reference, sum, weights);
      }
      keeps = all_at_most(sum, kMost);
    }
    if (!keeps) {
      raise_peaks(scores, n, x0, peak);
      for (int64_t v = 0; v < kGroup; ++v) {
        reference[v] = peak[v] == splat(-kInfinity<float>) ? Vec<float>{} : peak[v];
        factor[v] = exp2<float>(load(rows.peak + x0 + v * kN) - reference[v]);
        sum[v] = Vec<float>{};
      }
      exponentials<kCoarse>(scores, 0, n, n, x0, kept, reference, sum, weights);
    }
    for (int64_t v = 0; v < kGroup; ++v) {
      const int64_t x = x0 + v * kN;
      store(rows.peak + x, peak[v]);
      store(rows.factor + x, factor[v]);
      store(rows.sum + x, load(rows.sum + x) * factor[v] + sum[v]);
    }
  }
}

// rows.out += sum_j w_ij v_j for the pairs that count and the values that are infinite or NaN; clean_values = the
// others.
void separate_values(PairOperand values, int64_t n, int64_t channels, const ForwardSpace& space, QueryTile& tile) {
  BFloat16* to = space.clean_values;
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < kPairKeys; ++j) {
      BFloat16 value = values.data[c * values.step + j];
      if (j < n && any_non_finite(&value, 1)) {
        for (int64_t x = 0; x < kTile; ++x) {
          if (tile.scores.allowed[j * kTile + x] != 0)
            tile.rows.out[c * kTile + x] += widen(value) * widen(space.weights[j / 2 * 2 * kTile + 2 * x + j % 2]);
        }
        value.bits = 0;
      }
      to[c * values.step + j] = value;
    }
  }
}

// rows.out = rows.out * factor + V^T W
void accumulate(const HktProblem& p, int64_t j0, int64_t n, bool careful, QueryTile& tile, ForwardSpace& space) {
  PairOperand values = space.panel.values_transposed(j0);
  OutputTile<float>& rows = tile.rows;
  const int64_t depth = pair_depth(n), paired = round_up(n, 2);
  memset(space.weights + paired * kTile, 0, sizeof(BFloat16) * (depth - paired) * kTile);
  if (careful) {
    for (int64_t at = 0; at < p.value_size * kTile; ++at) rows.out[at] *= rows.factor[at % kTile];
    separate_values(values, n, p.value_size, space, tile);
    values.data = space.clean_values;
  }
  bool is_one = true;
  for (int64_t x = 0; x < kTile; ++x) is_one &= rows.factor[x] == 1.0f;
  const PairOperand weights{space.weights, 2 * kTile};
  if (careful || is_one) {
    pair_gemm(values, weights, rows.out, kTile, p.value_size, kTile, depth, StartFrom<float>{rows.out, kTile});
  } else {
    pair_gemm(values, weights, rows.out, kTile, p.value_size, kTile, depth,
              StartScaled<float>{rows.out, kTile, rows.factor});
  }
}

// One tile of queries and n keys, whose products are in `room`.
void attend(const PairHead& head, int64_t j0, int64_t n, const ScoreRoom& room, const DropoutTile<float>& dropout,
            QueryTile& tile, ForwardSpace& space, ProductsAhead& ahead) {
  const int64_t i0 = tile.first;
  bool masked = false;
  const PairSum scores = finish_scores(head, i0, j0, n, PairScores::sum(head, room), room.level[0], &masked);
  const bool careful = masked && space.panel.has_non_finite_values(j0);
  if (careful) note_allowed(scores.fine, n, tile.scores.allowed);
  if (dropout.active()) write_factors(dropout, i0, j0, n, space.kept);
  const float* kept = dropout.active() ? space.kept : nullptr;
  if (scores.coarse == nullptr) {
    softmax_pairs<false>(scores, n, kept, tile.rows, space.weights, ahead);
  } else {
    softmax_pairs<true>(scores, n, kept, tile.rows, space.weights, ahead);
  }
  accumulate(head.p, j0, n, careful, tile, space);
}

// One tile of queries and the keys first .. last - 1.
void attend_all(const PairHead& head, int64_t first, int64_t last, const DropoutTile<float>& dropout, QueryTile& tile,
                ForwardSpace& space) {
  ProductsAhead ahead(head, tile, space.panel, space.rooms);
  auto begin = [&](int64_t j0) { ahead.begin(j0, max(0, min(kPairKeys, last - j0))); };
  begin(first);
  for (int64_t j0 = first; j0 < last; j0 += kPairKeys) {
    ahead.finish();
    const ScoreRoom& room = ahead.room();
    if (kAhead) begin(j0 + kPairKeys);
    attend(head, j0, min(kPairKeys, last - j0), room, dropout, tile, space, ahead);
    if (!kAhead) begin(j0 + kPairKeys);
  }
}

// Up to kTogether tiles, from the query `begin` on.
void forward_tiles(const PairHead& head, const HktOutputs& outputs, int64_t begin, int64_t end, ForwardSpace& space) {
  const int64_t count = min(kTogether, (end - begin + kTile - 1) / kTile);
  const DropoutTile<float> dropout(head.p.dropout, head.b, head.h);
  HktRange all{INT64_MAX, 0};
  for (int64_t t = 0; t < count; ++t) {
    QueryTile& tile = space.tiles[t];
    tile.first = begin + t * kTile;
    tile.keys = {0, 0};
    tile.rows.start(line_width(head.p.value_size));
    if (tile.first >= head.length) continue;
    tile.scores.pack(head, tile.first);
    tile.keys = pair_key_range(head, tile.first, head.queries(tile.first));
    all = {min(all.begin, tile.keys.begin), max(all.end, tile.keys.end)};
  }
  for (int64_t block = all.begin; block < all.end; block += kBlockKeys) {
    for (int64_t t = 0; t < count; ++t) {
      QueryTile& tile = space.tiles[t];
      const int64_t first = max(tile.keys.begin, block), last = min(tile.keys.end, block + kBlockKeys);
      attend_all(head, first, last, dropout, tile, space);
    }
  }
  for (int64_t t = 0; t < count; ++t) write_outputs(head, space.tiles[t].first, outputs, space.tiles[t].rows);
}

// Runs of queries, long enough for the packed keys to pay and short enough for every thread to have some.
int64_t run_length(const HktProblem& p, int threads) {
  constexpr int64_t kShortest = 4, kItemsPerThread = 4;
  const int64_t tiles = (p.tokens + kTile - 1) / kTile;
  const int64_t wanted = max(1, kItemsPerThread * threads / max(1, p.batch * p.key_heads));
  return max(min(tiles, kShortest), (tiles + wanted - 1) / wanted) * kTile;
}

}  // namespace

bool hkt_forward_pairs(const HktProblem& p, const HktOutputs& outputs, int threads) {
  const int64_t run = max(kTile, run_length(p, threads)), runs = max(1, (p.tokens + run - 1) / run);
  const int64_t keys = min(p.key_tokens, run + p.window_left + p.window_right);
  Arena measure(nullptr);
  ForwardSpace sized(p, keys, measure);
  const Workspace workspace(measure.used(), threads);
  if (!workspace.ok()) return false;
  const int64_t group = p.heads / p.key_heads;
  parallel_items(p.batch * p.key_heads * runs, threads, [&](int64_t item, int thread) {
    const int64_t key_head = item / runs % p.key_heads, b = item / runs / p.key_heads;
    const int64_t begin = (runs - 1 - item % runs) * run;  // the longest causal rows first
    Arena arena(workspace.slice(thread));
    ForwardSpace space(p, keys, arena);
    [[maybe_unused]] const ProductScope scope;
    const PairHead any(p, b, key_head * group);
    if (begin >= any.rows) return;
    const int64_t end = min(any.rows, begin + run), real = min(any.length, end) - begin;
    if (real > 0) {
      const HktRange range = pair_key_range(any, begin, real);
      space.panel.pack(any, range.begin, range.end);
    }
    for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h) {
      const PairHead head(p, b, h);
      for (int64_t i0 = begin; i0 < end; i0 += kTogether * kTile) forward_tiles(head, outputs, i0, end, space);
    }
  });
  return true;
}

}  // namespace strata::STRATA_ISA
