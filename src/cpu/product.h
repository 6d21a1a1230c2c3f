// The products of trees and streams:  C = start + A B  on tiles of T. Where the instruction set multiplies pairs of
// bfloat16, both operands of a float product are rounded to bfloat16 and packed first, and the sums stay float.
#pragma once

#include "cpu/gemm.h"
#include "cpu/hkt_tile.h"
#include "cpu/product_scope.h"
#ifdef STRATA_PAIRS
#include "cpu/pair_product.h"
#endif

namespace strata::STRATA_ISA {

#ifndef STRATA_PAIRS

template <class T>
struct ProductSpace {
  ProductSpace(int64_t, Arena&) {}
};

// As gemm() of gemm.h.
template <class T, Layout kLayout, class Start>
inline void multiply_tiles(const ProductSpace<T>&, GemmOperand<T> a, GemmOperand<T> b, T* c, int64_t c_step,
                           int64_t rows, int64_t vectors, int64_t depth, const Start& start) {
  gemm<T, kLayout>(a, b, c, c_step, rows, vectors, depth, start);
}

#endif

}  // namespace strata::STRATA_ISA
