#include "strata/pyramid.h"

#include <algorithm>

#include "base/text.h"

namespace strata {
namespace {

Status check(const CausalFilter& f) {
  if (f.dtype != DType::kFloat32 && f.dtype != DType::kFloat64) {
    return invalid("dtype: the causal filter expects kFloat32 or kFloat64; convert the states first");
  }
  if (f.batch < 0 || f.tokens < 0)
    return invalid("batch, tokens: expected 0 or more, got ", f.batch, " and ", f.tokens);
  if (f.channels < 1) return invalid("channels: expected 1 or more, got ", f.channels);
  if (f.taps < 1) return invalid("taps: expected 1 or more, got ", f.taps);
  if (f.stride != 1 && f.stride != 2) return invalid("stride: expected 1 or 2, got ", f.stride);
  if (f.weight == nullptr) return invalid("weight: expected a pointer to data, got null");
  if (f.x == nullptr && f.batch * f.tokens > 0) return invalid("x: expected a pointer to data, got null");
  return {};
}

// The taps of output m that fall on real inputs: r = 0 .. min(taps, stride m + 1) - 1.
int taps_inside(const CausalFilter& f, int64_t m) {
  return static_cast<int>(std::min<int64_t>(f.taps, f.stride * m + 1));
}

template <class T>
void forward(const CausalFilter& f, T* y) {
  const int64_t rows = filtered_tokens(f.tokens, f.stride);
  const int64_t C = f.channels;
  const T* weight = static_cast<const T*>(f.weight);
#pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < f.batch; ++b) {
    for (int64_t m = 0; m < rows; ++m) {
      T* out = y + (b * rows + m) * C;
      std::fill(out, out + C, T(0));
      for (int r = 0; r < taps_inside(f, m); ++r) {
        const T* in = static_cast<const T*>(f.x) + (b * f.tokens + f.stride * m - r) * C;
        if (f.dense) {
          for (int64_t o = 0; o < C; ++o) {
            const T* w = weight + (r * C + o) * C;
            T sum = 0;
            for (int64_t c = 0; c < C; ++c) sum += w[c] * in[c];
            out[o] += sum;
          }
        } else {
          for (int64_t c = 0; c < C; ++c) out[c] += weight[r * C + c] * in[c];
        }
      }
    }
  }
}

// dx_{stride m - r} += W_r^T dy_m and dW_r += dy_m x_{stride m - r}^T (its diagonal, when depthwise).
template <class T>
void backward(const CausalFilter& f, const CausalFilterGradients& g) {
  const int64_t rows = filtered_tokens(f.tokens, f.stride);
  const int64_t C = f.channels;
  const T* weight = static_cast<const T*>(f.weight);
  T* dx = static_cast<T*>(g.dx);
  T* dweight = static_cast<T*>(g.dweight);
  std::fill(dx, dx + f.batch * f.tokens * C, T(0));
  std::fill(dweight, dweight + f.taps * C * (f.dense ? C : 1), T(0));
  for (int64_t b = 0; b < f.batch; ++b) {
    for (int64_t m = 0; m < rows; ++m) {
      const T* dy = static_cast<const T*>(g.dy) + (b * rows + m) * C;
      for (int r = 0; r < taps_inside(f, m); ++r) {
        const int64_t at = (b * f.tokens + f.stride * m - r) * C;
        const T* in = static_cast<const T*>(f.x) + at;
        if (f.dense) {
          for (int64_t o = 0; o < C; ++o) {
            const int64_t w = (r * C + o) * C;
            for (int64_t c = 0; c < C; ++c) {
              dx[at + c] += weight[w + c] * dy[o];
              dweight[w + c] += dy[o] * in[c];
            }
          }
        } else {
          for (int64_t c = 0; c < C; ++c) {
            dx[at + c] += weight[r * C + c] * dy[c];
            dweight[r * C + c] += dy[c] * in[c];
          }
        }
      }
    }
  }
}

}  // namespace

Status causal_filter_forward(const CausalFilter& f, void* y) {
  if (Status s = check(f); !s.ok()) return s;
  if (y == nullptr && f.batch * f.tokens > 0) return invalid("y: expected a pointer to data, got null");
  if (f.dtype == DType::kFloat64) {
    forward<double>(f, static_cast<double*>(y));
  } else {
    forward<float>(f, static_cast<float*>(y));
  }
  return {};
}

Status causal_filter_backward(const CausalFilter& f, const CausalFilterGradients& g) {
  if (Status s = check(f); !s.ok()) return s;
  if (g.dweight == nullptr || ((g.dy == nullptr || g.dx == nullptr) && f.batch * f.tokens > 0)) {
    return invalid("dy, dx, dweight: expected three pointers to data, got null");
  }
  if (f.dtype == DType::kFloat64) {
    backward<double>(f, g);
  } else {
    backward<float>(f, g);
  }
  return {};
}

}  // namespace strata
