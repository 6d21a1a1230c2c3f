// Scores of several levels on one tile: every coarse product is computed once and added to the fine pairs it stands
// for.
//
// As in hkt_tile.h, tiles are stored transposed, S[key][query]. An axis of a tile either consists of consecutive
// tokens, and then shrinks by half from level to level, or of rows that every level has its own mean for (the nodes of
// a tree).
#pragma once

#include "cpu/product.h"
#include "cpu/storage.h"

namespace strata::STRATA_ISA {

// One axis: rows `first` .. first + count - 1 of level 0.
struct LevelAxis {
  int64_t first, count;
  bool shrinks;

  int64_t origin(int l) const { return shrinks ? first >> l : first; }
  int64_t size(int l) const { return shrinks ? ((first + count - 1) >> l) - (first >> l) + 1 : count; }
  // Row x of level l belongs to this row of level l + 1.
  int64_t parent(int l, int64_t x) const { return shrinks ? ((origin(l) + x) >> 1) - origin(l + 1) : x; }
  // The sums of the shares of level 0 over each row of level l; false, and nothing, if they are the same.
  template <class T>
  bool sum_shares(int l, const T* shares, T* sums) const {
    if (!shrinks || l == 0) return false;
    for (int64_t r = 0; r < size(l); ++r) sums[r] = 0;
    for (int64_t c = 0; c < count; ++c) sums[((first + c) >> l) - origin(l)] += shares[c];
    return true;
  }
  // Whether parent(l, x) is x / 2 for all x.
  bool is_even(int l) const { return (origin(l) & 1) == 0; }
};

struct LevelGrid {
  LevelAxis keys, queries;
  template <class T>
  int64_t lanes(int l) const {
    return round_up(queries.size(l), kLanes<T>);
  }
};

template <class T>
struct StartLanesUpsampled {  // every number of the coarse tile is repeated twice along its row
  const T* coarse;
  int64_t step;
  Vec<T> operator()(int64_t r, int64_t v) const {
    return duplicate_lanes<T>(load(coarse + r * step + (v >> 1) * kLanes<T>), (v & 1) != 0);
  }
};

// scores[0] = sum_l keys[l] queries[l], up-sampled. keys[l]: (keys, depth); queries[l]: (depth, lanes), of any step;
// scores[l]: room for a tile, of step lanes(l).
template <class T>
void mix_levels(const ProductSpace<T>& space, const LevelGrid& grid, int levels, int64_t depth,
                const DenseRows<T>* keys, const GemmOperand<T>* queries, T* const* scores) {
  for (int l = levels - 1; l >= 0; --l) {
    const int64_t rows = grid.keys.size(l), lanes = grid.lanes<T>(l);
    auto multiply = [&](const auto& start) {
      multiply_tiles<T, Layout::kRowMajor>(space, {keys[l].data, keys[l].step}, queries[l], scores[l], lanes, rows,
                                           lanes / kLanes<T>, depth, start);
    };
    if (l == levels - 1) {
      multiply(StartZero<T>());
      continue;
    }
    const T* coarse = scores[l + 1];
    const int64_t step = grid.lanes<T>(l + 1);
    const bool both = grid.keys.shrinks && grid.keys.is_even(l);
    if (!grid.queries.shrinks && !grid.keys.shrinks) {
      multiply(StartFrom<T>{coarse, step});
    } else if (grid.queries.shrinks && grid.queries.is_even(l) && both) {
      multiply(StartUpsampled<T>{coarse, step});
    } else if (grid.queries.shrinks && grid.queries.is_even(l) && !grid.keys.shrinks) {
      multiply(StartLanesUpsampled<T>{coarse, step});
    } else {
      multiply(StartZero<T>());
      for (int64_t y = 0; y < rows; ++y) {
        const T* from = coarse + grid.keys.parent(l, y) * step;
        for (int64_t x = 0; x < grid.queries.size(l); ++x) scores[l][y * lanes + x] += from[grid.queries.parent(l, x)];
      }
    }
  }
}

// The transpose of the above: a tile of level l becomes one of level l + 1 by sums over the pairs that share a product.
// Where no axis shrinks they are the same. Returns the tile of level l + 1: `coarse`, or `fine` itself.
template <class T>
const T* sum_level(const LevelGrid& grid, int l, const T* fine, T* coarse) {
  if (!grid.queries.shrinks && !grid.keys.shrinks) return fine;
  const int64_t rows = grid.keys.size(l), lanes = grid.lanes<T>(l), step = grid.lanes<T>(l + 1);
  memset(coarse, 0, sizeof(T) * grid.keys.size(l + 1) * step);
  for (int64_t y = 0; y < rows; ++y) {
    const T* from = fine + y * lanes;
    T* to = coarse + grid.keys.parent(l, y) * step;
    if (grid.queries.shrinks && grid.queries.is_even(l)) {
      for (int64_t x = 0; x < step; x += kLanes<T>) {
        const Vec<T> a = load(from + 2 * x);
        const Vec<T> b = 2 * x + kLanes<T> < lanes ? load(from + 2 * x + kLanes<T>) : Vec<T>{};
        store(to + x, load(to + x) + add_lane_pairs<T>(a, b));
      }
    } else {
      for (int64_t x = 0; x < grid.queries.size(l); ++x) to[grid.queries.parent(l, x)] += from[x];
    }
  }
  return coarse;
}

}  // namespace strata::STRATA_ISA
