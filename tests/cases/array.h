// A (batch, head, token, channel) array for tests. The memory between and around its elements is NaN, so that a kernel
// that reads a byte it should not is found out.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "strata/tensor.h"

namespace strata::test {

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  BFloat16(double value) {  // NOLINT: converts like the built-in types
    const float narrowed = static_cast<float>(value);
    uint32_t wide;
    std::memcpy(&wide, &narrowed, 4);
    if (std::isnan(value)) {
      bits = 0x7fc0;
    } else {
      bits = static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
    }
  }
  operator double() const {  // NOLINT
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
};

template <class S>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr DType kDType = DType::kFloat32;
  using Compute = float;
};
template <>
struct TypeOf<double> {
  static constexpr DType kDType = DType::kFloat64;
  using Compute = double;
};
template <>
struct TypeOf<BFloat16> {
  static constexpr DType kDType = DType::kBFloat16;
  using Compute = float;
};

enum class Memory { kDense, kTokenMajor, kSpread };  // (B,H,T,C), (B,T,H,C), (B,H,T,C) with gaps between channels

template <class S>
class Array {
 public:
  Array() = default;
  Array(int64_t batch, int64_t heads, int64_t tokens, int64_t channels, Memory memory = Memory::kDense)
      : shape_{batch, heads, tokens, channels} {
    constexpr int64_t kMargin = 8;
    const int64_t gap = memory == Memory::kSpread ? 2 : 1;
    stride_[3] = gap;
    if (memory == Memory::kTokenMajor) {
      stride_[1] = channels;
      stride_[2] = heads * channels;
    } else {
      stride_[2] = channels * gap + (gap - 1);
      stride_[1] = tokens * stride_[2];
    }
    stride_[0] = heads * tokens * (memory == Memory::kTokenMajor ? channels : stride_[2]);
    data_.assign(kMargin + batch * stride_[0] + kMargin, S(std::numeric_limits<double>::quiet_NaN()));
    origin_ = kMargin;
  }

  S& operator()(int64_t b, int64_t h, int64_t t, int64_t c) { return data_[index(b, h, t, c)]; }
  double operator()(int64_t b, int64_t h, int64_t t, int64_t c) const { return data_[index(b, h, t, c)]; }
  const int64_t* shape() const { return shape_; }

  // Calls f(b, h, t, c) for every element.
  template <class F>
  void each(F f) const {
    for (int64_t b = 0; b < shape_[0]; ++b)
      for (int64_t h = 0; h < shape_[1]; ++h)
        for (int64_t t = 0; t < shape_[2]; ++t)
          for (int64_t c = 0; c < shape_[3]; ++c) f(b, h, t, c);
  }
  void fill(double value) {
    each([&](auto... at) { (*this)(at...) = S(value); });
  }
  void randomize(std::mt19937_64& random, double deviation = 1.0) {
    std::normal_distribution<double> normal(0.0, deviation);
    each([&](auto... at) { (*this)(at...) = S(normal(random)); });
  }
  template <class Other>
  void copy_from(const Array<Other>& other) {
    each([&](auto... at) { (*this)(at...) = S(static_cast<double>(other(at...))); });
  }

  View view() { return {data_.data() + origin_, {stride_[0], stride_[1], stride_[2], stride_[3]}}; }
  ConstView const_view() const { return {data_.data() + origin_, {stride_[0], stride_[1], stride_[2], stride_[3]}}; }
  S* data() { return data_.data() + origin_; }

  // Raw bytes, for bitwise comparisons.
  const std::vector<S>& raw() const { return data_; }

 private:
  int64_t index(int64_t b, int64_t h, int64_t t, int64_t c) const {
    return origin_ + b * stride_[0] + h * stride_[1] + t * stride_[2] + c * stride_[3];
  }

  int64_t shape_[4] = {0, 0, 0, 0};
  int64_t stride_[4] = {0, 0, 0, 0};
  int64_t origin_ = 0;
  std::vector<S> data_;
};

}  // namespace strata::test
