// HKT tiles whose products are those of pair_gemm.h: bfloat16 operands, float32 sums. Tiles are transposed as in
// hkt_tile.h, S[key][query], so keys are A as they lie in memory and queries are B.
//
// Queries and keys enter the products as the caller gave them. The factor of a level, scale * a_l, multiplies sums. The
// coarse levels are mixed on their own grids; the softmax adds them, up-sampled, to the finest one as it reads it. So
// all products start at zero: tiles cannot start from a coarse tile in registers, and would wait for it in memory.
#pragma once

#include "cpu/dropout_cpu.h"
#include "cpu/hkt_tile.h"
#include "cpu/pair_pack.h"

namespace strata::STRATA_ISA {

using PairHead = Head<BFloat16>;

constexpr int64_t kPairKeys = 64;  // keys of a tile, a multiple of kTile
static_assert(kPairKeys % kTile == 0 && kTile % kLineStep == 0);

// Queries of a tile at level l, in whole tiles of sums.
constexpr int64_t pair_lanes(int l) { return (kTile >> l) > kPairLanes ? kTile >> l : kPairLanes; }
// Keys of a tile at level l, with room for what kRowStep and kDepthStep add.
constexpr int64_t pair_rows(int l) { return (kPairKeys >> l) > kLineStep ? kPairKeys >> l : kLineStep; }
constexpr int64_t pair_depth(int64_t n) { return round_up(n, kDepthStep); }
constexpr int64_t line_width(int64_t channels) { return round_up(channels, kLineStep); }

// Heads of fewer channels have products that are too short to pay.
inline bool pairs_take(const HktProblem& p) {
  constexpr int kFewestChannels = 8;
  return p.head_size >= kFewestChannels && p.value_size >= kFewestChannels;
}

// Keys and values of one key head, packed once for many tiles of queries.
struct KeyPanel {
  // keys: of the largest range that pack() is given. transposed: for the backward pass.
  KeyPanel(const HktProblem& p, int64_t keys, bool transposed_, Arena& arena)
      : key_width(line_width(p.head_size)), value_width(line_width(p.value_size)), transposed(transposed_) {
    const int64_t tiles = (keys + kPairKeys - 1) / kPairKeys + 1;
    for (int l = 0; l < p.levels; ++l) {
      lines[l] = arena.take<BFloat16>((level_rows(tiles * kPairKeys, l) + 2 + kTileRows) * key_width);
      columns[l] = transposed ? arena.take<BFloat16>(tiles * key_width * pair_rows(l)) : nullptr;
    }
    value_lines = arena.take<BFloat16>((transposed ? tiles : 1) * kPairKeys * value_width);
    value_columns = transposed ? nullptr : arena.take<BFloat16>(tiles * value_width * kPairKeys);
    scratch = transposed ? arena.take<BFloat16>(kPairKeys * key_width) : nullptr;
    non_finite = arena.take<uint8_t>(tiles);
  }

  // The keys begin .. end - 1 of a head; begin is a multiple of kPairKeys.
  void pack(const PairHead& head, int64_t begin, int64_t end) {
    const HktProblem& p = head.p;
    first = begin;
    for (int l = 0; l < p.levels; ++l) {
      const int64_t rows = level_rows(end, l) - (begin >> l);
      pack_lines(head.k[l], begin >> l, rows, p.head_size, lines[l], rows + kTileRows, key_width);
    }
    for (int64_t j0 = begin; j0 < end; j0 += kPairKeys) {
      const int64_t n = min(kPairKeys, end - j0), tile = (j0 - first) / kPairKeys;
      BFloat16* values = value_lines + (transposed ? tile * kPairKeys * value_width : 0);
      pack_lines(head.v, j0, n, p.value_size, values, kPairKeys, value_width);
      non_finite[tile] = any_non_finite(values, n * value_width);
      if (!transposed) {
        transpose_lines(values, kPairKeys, value_width, value_columns + tile * value_width * kPairKeys, kPairKeys);
        continue;
      }
      for (int l = 0; l < p.levels; ++l) {
        const int64_t rows = pair_rows(l);
        pack_lines(head.k[l], j0 >> l, level_rows(n, l), p.head_size, scratch, rows, key_width);
        transpose_lines(scratch, rows, key_width, columns[l] + tile * key_width * rows, rows);
      }
    }
  }

  PairOperand keys(int l, int64_t j0) const { return {lines[l] + ((j0 >> l) - (first >> l)) * key_width, key_width}; }
  PairOperand keys_transposed(int l, int64_t j0) const {
    return {columns[l] + (j0 - first) / kPairKeys * key_width * pair_rows(l), pair_rows(l)};
  }
  PairOperand values(int64_t j0) const { return {value_lines + (j0 - first) * value_width, value_width}; }
  PairOperand values_transposed(int64_t j0) const { return {value_columns + (j0 - first) * value_width, kPairKeys}; }
  bool has_non_finite_values(int64_t j0) const { return non_finite[(j0 - first) / kPairKeys] != 0; }

  int64_t key_width, value_width, first;
  bool transposed;
  BFloat16* lines[kMaxLevels];    // (rows, key_width)
  BFloat16* columns[kMaxLevels];  // (key_width, pair_rows) of every tile
  BFloat16* value_lines;          // (keys, value_width); of the last tile only where they are not multiplied
  BFloat16* value_columns;        // (value_width, kPairKeys) of every tile
  BFloat16* scratch;
  uint8_t* non_finite;  // of every tile: whether a value is infinite or NaN
};

// Finished scores of a tile, in units of log 2: products times a factor, and the coarse levels.
struct PairSum {
  const float* fine;  // (keys, kTile)
  float factor;
  const float* coarse;  // (keys / 2, pair_lanes(1)), or null

  // What the coarse levels add to a vector of queries; j: one of two keys that share it.
  Vec<float> upsampled(int64_t j, int64_t x) const {
    return StartUpsampled<float>{coarse, pair_lanes(1)}(j, x / kLanes<float>);
  }
  Vec<float> at(int64_t j, int64_t x) const {
    const Vec<float> scaled = load(fine + j * kTile + x) * factor;
    return coarse == nullptr ? scaled : scaled + upsampled(j, x);
  }
};

// Room for the scores of a tile, level by level.
struct ScoreRoom {
  ScoreRoom(const HktProblem& p, Arena& arena) {
    for (int l = 0; l < p.levels; ++l) level[l] = arena.take<float>(pair_rows(l) * pair_lanes(l));
  }
  float* level[kMaxLevels];  // (rows, lanes): products; of coarse levels then the mix of those from l up
};

// Queries of one tile and their scores against a tile of keys.
struct PairScores {
  PairScores(const HktProblem& p, Arena& arena) : key_width(line_width(p.head_size)) {
    for (int l = 0; l < p.levels; ++l) queries[l] = arena.take<BFloat16>(key_width * pair_lanes(l));
    lines = arena.take<BFloat16>(kTile * max(key_width, line_width(p.value_size)));
    allowed = arena.take<uint8_t>(kPairKeys * kTile);
  }

  void pack(const PairHead& head, int64_t i0) {
    for (int l = 0; l < head.p.levels; ++l) {
      pack_lines(head.q[l], i0 >> l, level_rows(head.queries(i0), l), head.p.head_size, lines, pair_lanes(l),
                 key_width);
      pair_channels(lines, pair_lanes(l), key_width, queries[l], pair_lanes(l));
    }
  }

  static float factor(const PairHead& head, int l) {
    return static_cast<float>(head.p.scale) * head.weights[l] * kLog2E<float>;
  }
  // What the products of a tile stand for, when those of all levels are there.
  static PairSum sum(const PairHead& head, const ScoreRoom& room) {
    return {room.level[0], factor(head, 0), head.p.levels > 1 ? room.level[1] : nullptr};
  }

  PairSum multiply(const PairHead& head, const KeyPanel& panel, int64_t j0, int64_t n, const ScoreRoom& room) const {
    multiply_coarse(head, panel, j0, n, room);
    multiply_finest(head, panel, j0, n, {0, kPairKeys}, {0, kTile}, room);
    mix_coarse(head, n, room);
    return sum(head, room);
  }
  // Of the finest level, some of the keys and of the queries.
  void multiply_finest(const PairHead& head, const KeyPanel& panel, int64_t j0, int64_t n, HktRange rows,
                       HktRange lanes, const ScoreRoom& room) const {
    const PairOperand keys = panel.keys(0, j0);
    pair_gemm({keys.data + rows.begin * keys.step, keys.step}, {queries[0] + 2 * lanes.begin, 2 * kTile},
              room.level[0] + rows.begin * kTile + lanes.begin, kTile, min(rows.end, n) - rows.begin,
              lanes.end - lanes.begin, pair_depth(head.p.head_size), StartZero<float>());
  }
  void multiply_coarse(const PairHead& head, const KeyPanel& panel, int64_t j0, int64_t n,
                       const ScoreRoom& room) const {
    for (int l = head.p.levels - 1; l >= 1; --l) {
      const int64_t lanes = pair_lanes(l);
      pair_gemm(panel.keys(l, j0), {queries[l], 2 * lanes}, room.level[l], lanes, level_rows(n, l), lanes,
                pair_depth(head.p.head_size), StartZero<float>());
    }
  }
  static void mix_coarse(const PairHead& head, int64_t n, const ScoreRoom& room) {
    const int top = head.p.levels - 1;
    for (int l = top; l >= 1; --l) mix(room, l, level_rows(n, l), factor(head, l), l < top);
  }

  // level[l] = factor * level[l], plus the mix of the levels above, up-sampled.
  static void mix(const ScoreRoom& room, int l, int64_t rows, float factor, bool add) {
    const int64_t lanes = pair_lanes(l);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t x = 0; x < lanes; x += kLanes<float>) {
        float* at = room.level[l] + r * lanes + x;
        const Vec<float> own = load(at) * factor;
        if (add) {
          const StartUpsampled<float> above{room.level[l + 1], pair_lanes(l + 1)};
          store(at, own + above(r, x / kLanes<float>));
        } else {
          store(at, own);
        }
      }
    }
  }

  int64_t key_width;
  BFloat16* queries[kMaxLevels];  // (key_width / 2, lanes, 2) of level l
  BFloat16* lines;                // scratch
  uint8_t* allowed;               // (key, query) pairs that are not masked; filled only if it matters
};

// The factors of dropout of a tile, (n, kTile).
inline void write_factors(const DropoutTile<float>& dropout, int64_t i0, int64_t j0, int64_t n, float* kept) {
  dropout.each_key<kTile>(
      i0, j0, n, [&](int64_t j, const float* factors) { memcpy(kept + j * kTile, factors, sizeof(float) * kTile); });
}

// The keys that the queries i0 .. i0 + count - 1 see, from the start of a tile on.
inline HktRange pair_key_range(const PairHead& head, int64_t i0, int64_t count) {
  const HktRange range = keys_of_queries(head.p, i0, i0 + count - 1, head.key_length);
  return {range.begin / kPairKeys * kPairKeys, range.end};
}

// The finished scores of a tile: those of multiply(), or, where something is added to them, written in their place.
inline PairSum finish_scores(const PairHead& head, int64_t i0, int64_t j0, int64_t n, PairSum sum, float* scores,
                             bool* masked) {
  *masked = head.is_masked(i0, j0, n);
  if (!*masked && head.slope == 0.0f) return sum;
  for (int64_t j = 0; j < n; ++j)
    for (int64_t x = 0; x < kTile; x += kLanes<float>) store(scores + j * kTile + x, sum.at(j, x));
  add_terms<BFloat16, float>(head, i0, j0, n, scores);
  return {scores, 1.0f, nullptr};
}

}  // namespace strata::STRATA_ISA
