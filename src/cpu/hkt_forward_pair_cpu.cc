// HKT forward with products of bfloat16 (hkt_pair_tile.h). A work item is a key head and a run of queries: its keys and
// values are packed once, for all tiles of all query heads that read them. A few tiles of queries go through the keys
// together, block by block: products are so fast that reading long keys from the outer caches would take longer.
#include "cpu/hkt_forward_tile.h"
#include "cpu/hkt_pair_kernels.h"
#include "cpu/hkt_pair_softmax.h"
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
  ProductsAhead ahead(head, tile.scores, space.panel, space.rooms);
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
