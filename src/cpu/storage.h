// Moving rows between the caller's storage (any stride, float, double or bfloat16) and the dense tiles of the kernels.
#pragma once

#include "cpu/simd.h"
#include "strata/tensor.h"

namespace strata::STRATA_ISA {

struct BFloat16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline void narrow(float x, float* to) { *to = x; }
inline void narrow(double x, double* to) { *to = x; }
inline void narrow(float x, BFloat16* to) {  // to nearest, ties to even; NaN stays a (quiet) NaN
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to->bits = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// A whole vector, narrowed to storage.
inline void store_narrow(float* to, Vec<float> x) { store(to, x); }
inline void store_narrow(double* to, Vec<double> x) { store(to, x); }
inline void store_narrow(BFloat16* to, Vec<float> x) {  // narrow() of every lane
  typedef uint32_t Bits __attribute__((vector_size(kVectorBytes)));
  typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
  const Bits bits = reinterpret_cast<Bits>(x);
  const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Halves halves =
      __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded, Halves);
  memcpy(to, &halves, sizeof halves);
}

// Storage S of the caller and compute type T of the kernels.
template <class S>
struct Compute {
  using Type = float;
};
template <>
struct Compute<double> {
  using Type = double;
};

// Calls run(S{}) with the storage type that dtype names. Instruction sets of pairs have kernels for bfloat16 alone.
template <class Run>
inline bool with_storage(DType dtype, const Run& run) {
  switch (dtype) {
#ifndef STRATA_PAIRS
    case DType::kFloat32:
      return run(float{});
    case DType::kFloat64:
      return run(double{});
#endif
    case DType::kBFloat16:
      return run(BFloat16{});
    default:  // rejected by the argument checks
      break;
  }
  return false;
}

// The rows of one (batch, head) of a view.
template <class S>
struct Rows {
  S* data;
  int64_t token_stride;
  int64_t channel_stride;
  S& at(int64_t t, int64_t c) const { return data[t * token_stride + c * channel_stride]; }
};

// Asks for a row whose channels lie side by side. Inlined, because GCC 12 removes calls of functions that only
// prefetch.
template <int kWrite = 0, class S>
[[gnu::always_inline]] inline void prefetch_row(Rows<S> rows, int64_t row, int64_t channels) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(S));
  if (rows.channel_stride != 1) return;
  const S* first = &rows.at(row, 0);
  for (int64_t c = 0; c < channels; c += kLine) __builtin_prefetch(first + c, kWrite);
}

template <class AnyView>
inline int64_t offset_of(const AnyView& view, int64_t b, int64_t h) {
  return (view.begins != nullptr ? view.begins[b] * view.stride[2] : b * view.stride[0]) + h * view.stride[1];
}
template <class S>
inline Rows<const S> rows_of(const ConstView& view, int64_t b, int64_t h) {
  return {static_cast<const S*>(view.data) + offset_of(view, b, h), view.stride[2], view.stride[3]};
}
template <class S>
inline Rows<S> rows_of(const View& view, int64_t b, int64_t h) {
  return {static_cast<S*>(view.data) + offset_of(view, b, h), view.stride[2], view.stride[3]};
}

// tile[c][x] = factor * rows[first + x][c]; lanes from `count` to `lanes` are zero.
template <class S, class T>
inline void pack_transposed(Rows<const S> rows, int64_t first, int64_t count, int64_t channels, T factor, T* tile,
                            int64_t lanes) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t x = 0; x < count; ++x) tile[c * lanes + x] = factor * widen(rows.at(first + x, c));
    for (int64_t x = count; x < lanes; ++x) tile[c * lanes + x] = 0;
  }
}

// tile[x][c] = factor * rows[first + x][c]; channels from `channels` to `width` and rows from `count` on are zero.
template <class S, class T>
inline void pack_rows(Rows<const S> rows, int64_t first, int64_t count, int64_t channels, T factor, T* tile,
                      int64_t lanes, int64_t width) {
  for (int64_t x = 0; x < lanes; ++x) {
    const int64_t filled = x < count ? channels : 0;
    if (rows.channel_stride == 1) {
      const S* from = filled > 0 ? &rows.at(first + x, 0) : nullptr;
      for (int64_t c = 0; c < filled; ++c) tile[x * width + c] = factor * widen(from[c]);
    } else {
      for (int64_t c = 0; c < filled; ++c) tile[x * width + c] = factor * widen(rows.at(first + x, c));
    }
    for (int64_t c = filled; c < width; ++c) tile[x * width + c] = 0;
  }
}

// Rows as the products read them: in place if they are dense T already, else a copy in `scratch`.
template <class T>
struct DenseRows {
  const T* data;
  int64_t step;
};
template <class S, class T>
inline DenseRows<T> dense_rows(Rows<const S> rows, int64_t first, int64_t count, int64_t channels, T* scratch) {
  if constexpr (sizeof(S) == sizeof(T)) {
    if (rows.channel_stride == 1) return {&rows.at(first, 0), rows.token_stride};
  }
  pack_rows<S, T>(rows, first, count, channels, T(1), scratch, count, channels);
  return {scratch, channels};
}

// tile[c][x] = factor * rows[x][c] for x < count; lanes from `count` to `lanes` are zero. Rows hold whole vectors.
template <class T>
inline void transpose_rows(DenseRows<T> rows, int64_t count, int64_t channels, T factor, T* tile, int64_t lanes) {
  constexpr int64_t kN = kLanes<T>;
  for (int64_t x0 = 0; x0 < lanes; x0 += kN) {
    for (int64_t c0 = 0; c0 < channels; c0 += kN) {
      Vec<T> block[kN];
#pragma GCC unroll 16
      for (int64_t x = 0; x < kN; ++x) {
        block[x] = x0 + x < count ? load(rows.data + (x0 + x) * rows.step + c0) * factor : Vec<T>{};
      }
      transpose<T>(block);
      if (c0 + kN <= channels) {
#pragma GCC unroll 16
        for (int64_t c = 0; c < kN; ++c) store(tile + (c0 + c) * lanes + x0, block[c]);
      } else {
        for (int64_t c = 0; c0 + c < channels; ++c) store(tile + (c0 + c) * lanes + x0, block[c]);
      }
    }
  }
}

// Whether any number is infinite or NaN, that is, has all bits of its exponent set.
template <class T>
inline bool any_non_finite(DenseRows<T> rows, int64_t count, int64_t channels) {
  using Int = typename VecTypes<T>::Int;
  constexpr Int kExponent = sizeof(T) == 4 ? Int{0x7f800000} : static_cast<Int>(0x7ff0000000000000);
  Int found = 0;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < channels; ++c) {
      Int bits;
      memcpy(&bits, rows.data + r * rows.step + c, sizeof bits);
      found |= (bits & kExponent) == kExponent;
    }
  }
  return found != 0;
}

}  // namespace strata::STRATA_ISA
