// Where the rows and the tiles of an HKT problem lie, packed or not, and which keys are visible. Problems are complete
// here (hkt_check.h): key_tokens and both ends of the window are numbers of tokens.
#pragma once

#include <stdint.h>

#include "base/host_device.h"
#include "strata/hkt.h"

namespace strata {

// The sequences of the queries, or of the keys.
struct HktSide {
  const int64_t* begins;   // packed: the first row of each sequence
  const int64_t* lengths;  // null: all tokens are real
  int64_t batch, tokens, packed_rows;
};
STRATA_SHARED HktSide query_side(const HktProblem& p) {
  return {p.q[0].begins, p.lengths, p.batch, p.tokens, p.packed_rows};
}
STRATA_SHARED HktSide key_side(const HktProblem& p) {
  return {p.k[0].begins, p.key_lengths, p.batch, p.key_tokens, p.packed_key_rows};
}

// Real tokens of sequence b, and its rows in memory, padding included.
STRATA_SHARED int64_t length_of(const HktSide& side, int64_t b) {
  if (side.lengths == nullptr) return side.tokens;
  const int64_t length = side.lengths[b];
  return length < 0 ? 0 : length > side.tokens ? side.tokens : length;
}
STRATA_SHARED int64_t stored_rows(const HktSide& side, int64_t b) {
  return side.begins == nullptr ? side.tokens : length_of(side, b);
}

// Where lse (and D) of sequence b and head h begin, and how many numbers all of them are.
STRATA_SHARED int64_t hkt_line(const HktProblem& p, int64_t b, int64_t h) {
  return p.q[0].begins != nullptr ? h * p.packed_rows + p.q[0].begins[b] : (b * p.heads + h) * p.tokens;
}
STRATA_SHARED int64_t hkt_lines(const HktProblem& p) {
  return p.heads * (p.q[0].begins != nullptr ? p.packed_rows : p.batch * p.tokens);
}

// Tiles of `size` rows, of all sequences together. Packed, those of sequence b start at tile begins[b] / size + b,
// which leaves room for a last, partial one; so a few tiles have no rows.
struct HktTile {
  int64_t sequence, tile;
};
STRATA_SHARED int64_t tile_count(const HktSide& side, int64_t size) {
  return side.begins != nullptr ? side.packed_rows / size + side.batch : side.batch * ((side.tokens + size - 1) / size);
}
// The first tile of sequence b.
STRATA_SHARED int64_t first_tile(const HktSide& side, int64_t b, int64_t size) {
  return side.begins != nullptr ? side.begins[b] / size + b : b * ((side.tokens + size - 1) / size);
}
STRATA_SHARED HktTile locate_tile(const HktSide& side, int64_t at, int64_t size) {
  if (side.begins == nullptr) {
    const int64_t tiles = (side.tokens + size - 1) / size;
    return {at / tiles, at % tiles};
  }
  int64_t low = 0, high = side.batch - 1;  // finds the last sequence whose tiles start at `at` or before
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (first_tile(side, middle, size) <= at) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return {low, at - first_tile(side, low, size)};
}

// Key j is visible to query i if i - left <= j <= i + right: the keys that queries first .. last see, begin .. end - 1.
struct HktRange {
  int64_t begin, end;
};
STRATA_SHARED HktRange keys_of_queries(const HktProblem& p, int64_t first, int64_t last, int64_t key_length) {
  const int64_t left = first - p.window_left, right = last + p.window_right + 1;
  const int64_t begin = left < 0 ? 0 : left, end = right > key_length ? key_length : right;
  return {begin, end < begin ? begin : end};
}

}  // namespace strata
