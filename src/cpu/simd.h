// Vectors of the width that this file is compiled for, through the compiler's vector extensions.
//
// Files that include this are compiled once per instruction set (src/cpu/CMakeLists.txt), each time in a namespace of
// its own, STRATA_ISA. They must not use standard-library templates or inline functions: the linker keeps one copy of
// those, and an AVX-512 copy would crash an older machine.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#ifndef STRATA_ISA
#define STRATA_ISA isa_portable
#endif

namespace strata::STRATA_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kVectorRegisters = 32;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kVectorRegisters = 16;
#else
constexpr int kVectorBytes = 16;
constexpr int kVectorRegisters = 16;
#endif

template <class T>
struct VecTypes;
template <>
struct VecTypes<float> {
  typedef float Vector __attribute__((vector_size(kVectorBytes)));
  typedef int32_t Mask __attribute__((vector_size(kVectorBytes)));
  typedef float Unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
  using Int = int32_t;
};
template <>
struct VecTypes<double> {
  typedef double Vector __attribute__((vector_size(kVectorBytes)));
  typedef int64_t Mask __attribute__((vector_size(kVectorBytes)));
  typedef double Unaligned __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
  using Int = int64_t;
};
template <class T>
using Vec = typename VecTypes<T>::Vector;
template <class T>
using VecInt = typename VecTypes<T>::Mask;

template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
inline Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename VecTypes<T>::Unaligned*>(p);
}
template <class T>
inline void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename VecTypes<T>::Unaligned*>(p) = v;
}
template <class T>
inline Vec<T> splat(T x) {
  return Vec<T>{} + x;
}

inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

template <class T>
inline constexpr T kInfinity = static_cast<T>(__builtin_inf());

// ---------------------------------------------------------------------------------------------- lane shuffles

// Indices as template parameters, because these files must not use <utility>.
template <int... I>
struct Lanes {};
template <int N, int... I>
struct MakeLanes : MakeLanes<N - 1, N - 1, I...> {};
template <int... I>
struct MakeLanes<0, I...> {
  using Type = Lanes<I...>;
};

// Lanes x -> offset + x / 2: each coarse lane twice, from the lower (offset 0) or upper half of v.
template <class T, int... I>
inline Vec<T> duplicate(Vec<T> v, bool upper, Lanes<I...>) {
  constexpr int kHalf = kLanes<T> / 2;
  return upper ? __builtin_shufflevector(v, v, (kHalf + I / 2)...) : __builtin_shufflevector(v, v, (I / 2)...);
}
template <class T>
inline Vec<T> duplicate_lanes(Vec<T> v, bool upper) {
  return duplicate<T>(v, upper, typename MakeLanes<kLanes<T>>::Type());
}

// The sums of neighbouring lanes of (a, b), in order: the transpose of duplicate_lanes.
template <class T, int... I>
inline Vec<T> pair_sums(Vec<T> a, Vec<T> b, Lanes<I...>) {
  return __builtin_shufflevector(a, b, (2 * I)...) + __builtin_shufflevector(a, b, (2 * I + 1)...);
}
template <class T>
inline Vec<T> add_lane_pairs(Vec<T> a, Vec<T> b) {
  return pair_sums<T>(a, b, typename MakeLanes<kLanes<T>>::Type());
}

// The butterfly step of a transposition: exchanges the lanes with bit kStep between two rows.
template <class T, int kStep, int... I>
inline void exchange(Vec<T>& a, Vec<T>& b, Lanes<I...>) {
  constexpr int kN = kLanes<T>;
  const Vec<T> low = __builtin_shufflevector(a, b, ((I & kStep) == 0 ? I : kN + I - kStep)...);
  b = __builtin_shufflevector(a, b, ((I & kStep) == 0 ? I + kStep : kN + I)...);
  a = low;
}
template <class T, int kStep = 1>
inline void transpose(Vec<T> (&rows)[kLanes<T>]) {
#pragma GCC unroll 16
  for (int r = 0; r < kLanes<T>; ++r) {
    if ((r & kStep) == 0) exchange<T, kStep>(rows[r], rows[r + kStep], typename MakeLanes<kLanes<T>>::Type());
  }
  if constexpr (2 * kStep < kLanes<T>) transpose<T, 2 * kStep>(rows);
}

template <class T>
inline Vec<T> lane_index() {
  Vec<T> index{};
  for (int x = 0; x < kLanes<T>; ++x) index[x] = static_cast<T>(x);
  return index;
}

// ---------------------------------------------------------------------------------------------- exponential

// Minimax coefficients of 2^f on [-1/2, 1/2], lowest first. float: degree 6, relative error 2e-9 before rounding;
// double: degree 11, relative error 3e-18.
template <class T>
struct Exp2Poly;
template <>
struct Exp2Poly<float> {
  static constexpr float kCoefficient[] = {
      1.0f, 0.69314720574f, 0.24022646891f, 0.05550328777f, 0.0096184889565f, 0.0013399931209f, 0.00015345812159f};
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  static constexpr float kSmallest = -126.0f;
  static constexpr int kMantissaBits = 23;
  static constexpr int32_t kBias = 127;
};
template <>
struct Exp2Poly<double> {
  static constexpr double kCoefficient[] = {1.0,
                                            0.69314718055994533046,
                                            0.24022650695910156205,
                                            0.055504108664819921483,
                                            0.0096181291075883350833,
                                            0.0013333558146789950323,
                                            0.00015403530462514613026,
                                            0.0000152527334899608046,
                                            1.3215433089594629037e-6,
                                            1.0178198033328527662e-7,
                                            7.0741056262456593708e-9,
                                            4.4352809446103361611e-10};
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kSmallest = -1022.0;
  static constexpr int kMantissaBits = 52;
  static constexpr int64_t kBias = 1023;
};

// The polynomial part of 2^(n + f).
template <class T, class P>
inline Vec<T> exp2_fraction(Vec<T> f) {
  constexpr int kDegree = sizeof(P::kCoefficient) / sizeof(T) - 1;
  Vec<T> poly = splat(P::kCoefficient[kDegree]);
#pragma GCC unroll 16
  for (int n = kDegree - 1; n >= 0; --n) poly = poly * f + splat(P::kCoefficient[n]);
  return poly;
}

// 2^x for x <= 0 (and up to the largest exponent). Far below the smallest normal number, and for -inf, the result is
// exactly 0; NaN stays NaN.
#ifdef __AVX512F__
// The zero-masked forms with a full mask: in the unmasked ones GCC 12 warns about its own header.
inline Vec<float> exp2_vector(Vec<float> x) {
  const Vec<float> clamped =
      _mm512_maskz_max_ps(0xffff, splat(2 * Exp2Poly<float>::kSmallest), x);  // max(a, NaN) is NaN
  const Vec<float> n = _mm512_maskz_roundscale_ps(0xffff, clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_maskz_scalef_ps(0xffff, exp2_fraction<float, Exp2Poly<float>>(clamped - n), n);
}
inline Vec<double> exp2_vector(Vec<double> x) {
  const Vec<double> clamped = _mm512_maskz_max_pd(0xff, splat(2 * Exp2Poly<double>::kSmallest), x);
  const Vec<double> n = _mm512_maskz_roundscale_pd(0xff, clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_maskz_scalef_pd(0xff, exp2_fraction<double, Exp2Poly<double>>(clamped - n), n);
}
template <class T>
inline Vec<T> exp2(Vec<T> x) {
  return exp2_vector(x);
}
#else
template <class T>
inline Vec<T> exp2(Vec<T> x) {
  using P = Exp2Poly<T>;
  const VecInt<T> underflow = x < splat(P::kSmallest);  // false for NaN, which the product at the end keeps
  const Vec<T> clamped = underflow ? splat(P::kSmallest) : x;
  const Vec<T> shifted = clamped + splat(P::kRound);
  const Vec<T> poly = exp2_fraction<T, P>(clamped - (shifted - splat(P::kRound)));
  const VecInt<T> exponent = (reinterpret_cast<VecInt<T>>(shifted) + P::kBias) << P::kMantissaBits;
  const Vec<T> result = poly * reinterpret_cast<Vec<T>>(exponent);
  return underflow ? Vec<T>{} : result;
}
#endif

// 2^(n + f) with f in [0, 1] for results that become bfloat16: degree 4, relative error 3e-6, exact at 0.
struct ShortExp2Poly {
  static constexpr float kCoefficient[] = {1.0f, 0.69304484129f, 0.24128019810f, 0.052242472768f, 0.013426683843f};
};

// 2^x as exp2(), also for large x: above 2^127 the result is that or more, up to infinity.
#ifdef __AVX512F__
inline Vec<float> exp2_short(Vec<float> x) {
  // x less the integer below it, and times 2 to that integer: two instructions, which take -inf as it should be.
  const Vec<float> f = _mm512_maskz_reduce_ps(0xffff, x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return _mm512_maskz_scalef_ps(0xffff, exp2_fraction<float, ShortExp2Poly>(f), x);
}
#else
inline Vec<float> exp2_short(Vec<float> x) {
  using P = Exp2Poly<float>;
  constexpr float kLargest = 127.0f;
  const VecInt<float> underflow = x < splat(P::kSmallest);  // false for NaN, which the product at the end keeps
  const Vec<float> below = x > splat(kLargest) ? splat(kLargest) : x;
  const Vec<float> clamped = underflow ? splat(P::kSmallest) : below;
  const Vec<float> shifted = (clamped - splat(0.5f)) + splat(P::kRound);
  const Vec<float> poly = exp2_fraction<float, ShortExp2Poly>(clamped - (shifted - splat(P::kRound)));
  const VecInt<float> exponent = (reinterpret_cast<VecInt<float>>(shifted) + P::kBias) << P::kMantissaBits;
  return underflow ? Vec<float>{} : poly * reinterpret_cast<Vec<float>>(exponent);
}
#endif

template <class T>
inline constexpr T kLog2E = static_cast<T>(1.4426950408889634074);
template <class T>
inline constexpr T kLn2 = static_cast<T>(0.69314718055994530942);

inline float natural_log(float x) { return __builtin_logf(x); }
inline double natural_log(double x) { return __builtin_log(x); }

}  // namespace strata::STRATA_ISA
