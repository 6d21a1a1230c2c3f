// Rows of bfloat16 in the layouts that pair_gemm.h multiplies. All of them start from `lines`: rows one after the
// other, `width` numbers each, a multiple of kLineStep, with zeros beyond the channels of the caller's rows.
#pragma once

#include "cpu/pair_gemm.h"
#include "cpu/storage.h"

namespace strata::STRATA_ISA {

constexpr int64_t kLineStep = 32;  // numbers of a row of a tile of A

typedef uint32_t PairVec __attribute__((vector_size(kVectorBytes)));
typedef uint16_t HalfVec __attribute__((vector_size(kVectorBytes / 2)));
typedef uint16_t UnalignedHalfVec __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
typedef uint32_t UnalignedPairVec __attribute__((vector_size(kVectorBytes), aligned(2), may_alias));

// A row of lines: a copy of the caller's, then zeros; `real` false: zeros only.
inline void pack_line(Rows<const BFloat16> rows, int64_t row, bool real, int64_t channels, BFloat16* line,
                      int64_t width) {
  const int64_t filled = real ? channels : 0;
  if (rows.channel_stride == 1) {
    if (filled > 0) memcpy(line, &rows.at(row, 0), sizeof(BFloat16) * filled);
  } else {
    for (int64_t c = 0; c < filled; ++c) line[c] = rows.at(row, c);
  }
  memset(line + filled, 0, sizeof(BFloat16) * (width - filled));
}

// lines[x] = rows[first + x], and zeros from `count` to `padded`.
inline void pack_lines(Rows<const BFloat16> rows, int64_t first, int64_t count, int64_t channels, BFloat16* lines,
                       int64_t padded, int64_t width) {
  for (int64_t x = 0; x < padded; ++x) pack_line(rows, first + x, x < count, channels, lines + x * width, width);
}

// Blocks of kLanes x kLanes pairs, transposed: to[c][x] = from(x, c), in pairs. rows, columns: multiples of kLanes.
template <class From>
inline void transpose_pairs(int64_t rows, int64_t columns, const From& from, BFloat16* to, int64_t step) {
  constexpr int64_t kN = kLanes<float>;
  for (int64_t x0 = 0; x0 < rows; x0 += kN) {
    for (int64_t c0 = 0; c0 < columns; c0 += kN) {
      Vec<float> block[kN];
#pragma GCC unroll 16
      for (int64_t x = 0; x < kN; ++x) block[x] = reinterpret_cast<Vec<float>>(from(x0 + x, c0));
      transpose<float>(block);
#pragma GCC unroll 16
      for (int64_t c = 0; c < kN; ++c)
        *reinterpret_cast<UnalignedPairVec*>(to + (c0 + c) * step + 2 * x0) = reinterpret_cast<PairVec>(block[c]);
    }
  }
}

// The numbers c .. c + kLanes - 1 of two lines, as pairs.
inline PairVec pairs_of_lines(const BFloat16* even, const BFloat16* odd, int64_t c) {
  const HalfVec low = *reinterpret_cast<const UnalignedHalfVec*>(even + c);
  const HalfVec high = *reinterpret_cast<const UnalignedHalfVec*>(odd + c);
  return __builtin_convertvector(low, PairVec) | __builtin_convertvector(high, PairVec) << 16;
}

// A of a sum over rows: to[c][x] = lines[x][c]. count: a multiple of kLineStep.
inline void transpose_lines(const BFloat16* lines, int64_t count, int64_t width, BFloat16* to, int64_t step) {
  transpose_pairs(
      count / 2, width,
      [&](int64_t x, int64_t c) { return pairs_of_lines(lines + 2 * x * width, lines + (2 * x + 1) * width, c); }, to,
      step);
}

// B of a sum over channels: to[c / 2][x][c % 2] = lines[x][c]. count: a multiple of kPairLanes.
inline void pair_channels(const BFloat16* lines, int64_t count, int64_t width, BFloat16* to, int64_t lanes) {
  transpose_pairs(
      count, width / 2,
      [&](int64_t x, int64_t c) -> PairVec {
        return *reinterpret_cast<const UnalignedPairVec*>(lines + x * width + 2 * c);
      },
      to, 2 * lanes);
}

// B of a sum over rows: to[x / 2][c][x % 2] = lines[x][c]. count: even.
inline void pair_lines(const BFloat16* lines, int64_t count, int64_t width, BFloat16* to) {
  for (int64_t x = 0; x < count; x += 2) {
    for (int64_t c = 0; c < width; c += kLanes<float>) {
      *reinterpret_cast<UnalignedPairVec*>(to + x * width + 2 * c) =
          pairs_of_lines(lines + x * width, lines + (x + 1) * width, c);
    }
  }
}

// B of a sum over rows from two rows of float: to[x] = (even[x], odd[x]), rounded.
inline void store_pairs(BFloat16* to, Vec<float> even, Vec<float> odd) {
#ifdef __AVX512BF16__
  const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi16(0xffffffffu, order, both));
#else
  for (int64_t x = 0; x < kLanes<float>; ++x) {
    narrow(even[x], to + 2 * x);
    narrow(odd[x], to + 2 * x + 1);
  }
#endif
}

// A of a sum over columns from a row of float, rounded.
inline void store_line(BFloat16* to, Vec<float> x) {
#ifdef __AVX512BF16__
  const __m256bh halves = _mm512_cvtneps_pbh(x);
  memcpy(to, &halves, sizeof halves);
#else
  store_narrow(to, x);
#endif
}

// Whether any number is infinite or NaN.
inline bool any_non_finite(const BFloat16* numbers, int64_t count) {
  int found = 0;
  for (int64_t x = 0; x < count; ++x) found |= (numbers[x].bits & 0x7f80) == 0x7f80;
  return found != 0;
}

}  // namespace strata::STRATA_ISA
