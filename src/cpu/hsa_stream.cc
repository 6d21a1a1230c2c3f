// Streaming HSA: dispatch, and the decoding step.
#include "strata/hsa_stream.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/hsa_stream_check.h"
#include "base/text.h"
#include "cpu/kernels.h"
#include "strata/hkt.h"

namespace strata {
namespace {

// One head of one sequence: attend to the entries and the token itself.
template <class T>
void attend(const HsaStreamStep& s, int64_t b, int64_t h) {
  const int64_t d = s.head_size, dv = s.value_size, B = s.branching, bh = b * s.heads + h;
  const T* q = static_cast<const T*>(s.q) + bh * d;
  const T* k = static_cast<const T*>(s.k) + bh * d;
  const T* v = static_cast<const T*>(s.v) + bh * dv;
  const T* keys = static_cast<const T*>(s.keys) + bh * s.capacity * B * d;
  const T* values = static_cast<const T*>(s.values) + bh * s.capacity * B * dv;
  const T* kappas = static_cast<const T*>(s.kappas) + bh * s.capacity * B;
  const T* masses = static_cast<const T*>(s.masses) + b * s.capacity * B;
  const T scale = static_cast<T>(s.scale);
  auto dot = [&](const T* x, const T* y) {
    T sums[8] = {};  // independent sums, so that the compiler may use vectors
    int64_t c = 0;
    for (; c + 8 <= d; c += 8)
      for (int64_t x8 = 0; x8 < 8; ++x8) sums[x8] += x[c + x8] * y[c + x8];
    T sum = 0;
    for (T part : sums) sum += part;
    for (; c < d; ++c) sum += x[c] * y[c];
    return sum;
  };

  std::vector<T> scores;
  std::vector<const T*> rows;
  const T weight = s.weight == nullptr ? T(1) : static_cast<const T*>(s.weight)[b];
  if (weight > T(0)) {
    const T kappa = s.key_bias == nullptr ? T(0) : static_cast<const T*>(s.key_bias)[bh];
    scores.push_back(scale * dot(q, k) + kappa + std::log(weight));
    rows.push_back(v);
  }
  int64_t rest = s.lengths[b];
  for (int64_t height = 0; rest > 0; ++height, rest /= B) {
    const int64_t place = rest % B;
    for (int64_t n = 0; n < place; ++n) {
      const int64_t at = height * B + n;
      if (!(masses[at] > T(0))) continue;
      T score = scale * dot(q, keys + at * d) + kappas[at] + std::log(masses[at]);
      if (s.positions != nullptr && height < s.heights) {
        score += static_cast<const T*>(s.positions)[((h * s.heights + height) * B + place) * B + n];
      }
      scores.push_back(score);
      rows.push_back(values + at * dv);
    }
  }
  T* out = static_cast<T*>(s.out) + bh * dv;
  std::fill(out, out + dv, T(0));
  if (scores.empty()) return;
  const T peak = *std::max_element(scores.begin(), scores.end());
  T sum = 0;
  for (T& score : scores) sum += score = std::exp(score - peak);
  for (size_t e = 0; e < scores.size(); ++e)
    for (int64_t c = 0; c < dv; ++c) out[c] += scores[e] / sum * rows[e][c];
}

// Adds the token to the cache; b entries of one height become one entry of the next.
template <class T>
void append(const HsaStreamStep& s, int64_t b) {
  const int64_t d = s.head_size, dv = s.value_size, B = s.branching;
  T* masses = static_cast<T*>(s.masses) + b * s.capacity * B;
  auto put = [&](int64_t height, int64_t slot, T mass, auto source) {
    const int64_t at = height * B + slot;
    masses[at] = mass;
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t row = (b * s.heads + h) * s.capacity * B + at;
      source(h, static_cast<T*>(s.keys) + row * d, static_cast<T*>(s.values) + row * dv,
             static_cast<T*>(s.kappas) + row);
    }
  };
  int64_t rest = s.lengths[b]++;
  put(0, rest % B, s.weight == nullptr ? T(1) : static_cast<const T*>(s.weight)[b],
      [&](int64_t h, T* k, T* v, T* kappa) {
        const int64_t bh = b * s.heads + h;
        std::copy_n(static_cast<const T*>(s.k) + bh * d, d, k);
        std::copy_n(static_cast<const T*>(s.v) + bh * dv, dv, v);
        *kappa = s.key_bias == nullptr ? T(0) : static_cast<const T*>(s.key_bias)[bh];
      });
  for (int64_t height = 0; rest % B == B - 1; ++height) {
    rest /= B;
    T mass = 0;
    for (int64_t n = 0; n < B; ++n) mass += masses[height * B + n];
    put(height + 1, rest % B, mass, [&](int64_t h, T* k, T* v, T* kappa) {
      std::fill(k, k + d, T(0));
      std::fill(v, v + dv, T(0));
      *kappa = 0;
      for (int64_t n = 0; n < B; ++n) {
        const T part = masses[height * B + n];
        if (!(part > T(0))) continue;
        const int64_t row = ((b * s.heads + h) * s.capacity + height) * B + n;
        const T share = part / mass;
        for (int64_t c = 0; c < d; ++c) k[c] += share * static_cast<const T*>(s.keys)[row * d + c];
        for (int64_t c = 0; c < dv; ++c) v[c] += share * static_cast<const T*>(s.values)[row * dv + c];
        *kappa += share * static_cast<const T*>(s.kappas)[row];
      }
    });
  }
}

template <class T>
void run_step(const HsaStreamStep& s) {
#pragma omp parallel for if (s.batch * s.heads > 32)
  for (int64_t bh = 0; bh < s.batch * s.heads; ++bh) attend<T>(s, bh / s.heads, bh % s.heads);
  for (int64_t b = 0; b < s.batch; ++b) append<T>(s, b);
}

}  // namespace

Status hsa_stream_forward(const HsaStreamProblem& p, const HsaStreamOutputs& outputs) {
  if (Status s = hsa_stream_check(p, outputs); !s.ok()) return s;
  if (p.batch * p.tokens == 0) return {};
  return kernel_status(cpu_kernels().hsa_stream_forward(p, outputs, threads_or_default(p.threads)), "streaming HSA");
}

Status hsa_stream_backward(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, const HsaStreamGradients& g) {
  if (Status s = hsa_stream_check(p, outputs); !s.ok()) return s;
  if (Status s = hsa_stream_check(g, p); !s.ok()) return s;
  return kernel_status(cpu_kernels().hsa_stream_backward(p, outputs, g, threads_or_default(p.threads)),
                       "streaming HSA");
}

Status hsa_stream_step(const HsaStreamStep& s) {
  if (Status status = hsa_stream_check(s); !status.ok()) return status;
  for (int64_t b = 0; b < s.batch; ++b) {
    if (s.lengths[b] < 0) return invalid("lengths: expected 0 or more, got ", s.lengths[b], " for sequence ", b);
    const int64_t needed = hsa_stream_heights(s.lengths[b] + 1, s.branching);
    if (needed > s.capacity) {
      return invalid("capacity: sequence ", b, " needs ", needed, " heights for its next token, the cache has ",
                     s.capacity);
    }
  }
  if (s.dtype == DType::kFloat64) {
    run_step<double>(s);
  } else {
    run_step<float>(s);
  }
  return {};
}

}  // namespace strata
