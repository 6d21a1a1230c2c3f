// A product of two tiles of float by pairs of bfloat16 (pair_gemm.h). Operands are rounded and packed for every
// product, which costs little beside it: a tile has up to kTile rows.
#pragma once

#include "cpu/hkt_tile.h"
#include "cpu/pair_pack.h"

namespace strata::STRATA_ISA {

template <class T>
struct ProductSpace;
template <>
struct ProductSpace<float> {
  // widest: the most channels of an operand. The other side of an operand has up to kTile rows.
  ProductSpace(int64_t widest, Arena& arena)
      : a(arena.take<BFloat16>(kTile * round_up(max(kTile, widest), kLineStep))),
        b(arena.take<BFloat16>(kTile * round_up(max(kTile, widest), kLineStep))) {}

  BFloat16* a;  // (rows, depth)
  BFloat16* b;  // (depth / 2, lanes, 2)
};

// A vector whose lanes from `count` on are zeros.
inline Vec<float> first_lanes(Vec<float> x, int64_t count) {
  using Bits = VecInt<float>;
  Bits index;
  for (int lane = 0; lane < kLanes<float>; ++lane) index[lane] = lane;
  return reinterpret_cast<Vec<float>>(reinterpret_cast<Bits>(x) & (index < static_cast<int32_t>(count)));
}

// A of gemm(), a[r][k], as lines of `width` numbers. Rows of `a` are whole vectors.
inline void pack_operand_rows(GemmOperand<float> a, int64_t rows, int64_t depth, BFloat16* to, int64_t width) {
  constexpr int64_t kN = kLanes<float>;
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = a.data + r * a.step;
    int64_t k = 0;
    for (; k + kN <= depth; k += kN) store_line(to + r * width + k, load(from + k));
    if (k < depth) {
      store_line(to + r * width + k, first_lanes(load(from + k), depth - k));
      k += kN;
    }
    for (; k < width; k += kN) store_line(to + r * width + k, Vec<float>{});
  }
}

// Numbers of two rows of float, as pairs.
inline PairVec pairs_of_rows(Vec<float> even, Vec<float> odd) {
  PairVec pairs;
  store_pairs(reinterpret_cast<BFloat16*>(&pairs), even, odd);
  return pairs;
}

// A of gemm(), a[k][r], as lines of `width` numbers.
inline void pack_operand_columns(GemmOperand<float> a, int64_t rows, int64_t depth, BFloat16* to, int64_t width) {
  auto row = [&](int64_t k, int64_t r) { return k < depth ? load(a.data + k * a.step + r) : Vec<float>{}; };
  transpose_pairs(
      width / 2, round_up(rows, kLanes<float>),
      [&](int64_t x, int64_t r) { return pairs_of_rows(row(2 * x, r), row(2 * x + 1, r)); }, to, width);
}

// B of gemm(), b[k][x], as pairs of rows of `lanes` columns.
inline void pack_operand_pairs(GemmOperand<float> b, int64_t vectors, int64_t depth, int64_t padded, BFloat16* to,
                               int64_t lanes) {
  constexpr int64_t kN = kLanes<float>;
  for (int64_t k = 0; k < padded; k += 2) {
    const float* from = b.data + k * b.step;
    for (int64_t x = 0; x < lanes; x += kN) {
      const bool real = x < vectors * kN;
      store_pairs(to + k * lanes + 2 * x, real && k < depth ? load(from + x) : Vec<float>{},
                  real && k + 1 < depth ? load(from + b.step + x) : Vec<float>{});
    }
  }
}

#ifdef STRATA_TILES

// A tile of C of which only `rows` x `vectors` are there.
template <class Start>
inline void edge_tile(PairOperand a, PairOperand b, float* c, int64_t c_step, int64_t r0, int64_t rows, int64_t x0,
                      int64_t lanes, int64_t depth, const Start& start) {
  constexpr int64_t kN = kLanes<float>;
  alignas(64) float tile[kTileRows * kPairLanes] = {};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t x = 0; x < lanes; x += kN) store(tile + r * kPairLanes + x, start(r0 + r, (x0 + x) / kN));
  pair_block<1, 1>({a.data + r0 * a.step, a.step}, {b.data + 2 * x0, b.step}, tile, kPairLanes, 0, 0, depth,
                   StartFrom<float>{tile, kPairLanes});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t x = 0; x < lanes; x += kN) store(c + (r0 + r) * c_step + x0 + x, load(tile + r * kPairLanes + x));
}

template <class Start>
inline void multiply_packed(PairOperand a, PairOperand b, float* c, int64_t c_step, int64_t rows, int64_t lanes,
                            int64_t depth, const Start& start) {
  const int64_t whole_rows = rows / kTileRows * kTileRows, whole_lanes = lanes / kPairLanes * kPairLanes;
  pair_gemm(a, b, c, c_step, whole_rows, whole_lanes, depth, start);
  for (int64_t r = 0; r < rows; r += kTileRows) {
    for (int64_t x = r < whole_rows ? whole_lanes : 0; x < lanes; x += kPairLanes)
      edge_tile(a, b, c, c_step, r, min(kTileRows, rows - r), x, min(kPairLanes, lanes - x), depth, start);
  }
}

#else

template <class Start>
inline void multiply_packed(PairOperand a, PairOperand b, float* c, int64_t c_step, int64_t rows, int64_t lanes,
                            int64_t depth, const Start& start) {
  pair_gemm(a, b, c, c_step, rows, lanes, depth, start);
}

#endif

// Packing pays from this many products on for each number that is packed. Below, small families and heads are faster in
// float32 (measured on AVX-512 BF16).
constexpr int64_t kProductsPerPacked = 12;

// As gemm() of gemm.h.
template <class T, Layout kLayout, class Start>
inline void multiply_tiles(const ProductSpace<float>& space, GemmOperand<float> a, GemmOperand<float> b, float* c,
                           int64_t c_step, int64_t rows, int64_t vectors, int64_t depth, const Start& start) {
  const int64_t width = round_up(depth, kLineStep), padded = round_up(depth, kDepthStep);
  const int64_t lanes = vectors * kLanes<float>, packed_lanes = round_up(lanes, kPairLanes);
  if (rows * lanes * depth < kProductsPerPacked * (rows * width + lanes * depth))
    return gemm<float, kLayout>(a, b, c, c_step, rows, vectors, depth, start);
  if constexpr (kLayout == Layout::kRowMajor) {
    pack_operand_rows(a, rows, depth, space.a, width);
  } else {
    pack_operand_columns(a, rows, depth, space.a, width);
  }
  pack_operand_pairs(b, vectors, depth, padded, space.b, packed_lanes);
  multiply_packed({space.a, width}, {space.b, 2 * packed_lanes}, c, c_step, rows, lanes, padded, start);
}

}  // namespace strata::STRATA_ISA
