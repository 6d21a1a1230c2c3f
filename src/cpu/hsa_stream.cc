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

// The cache of one sequence and key head: `ring` slots of every height, a row of `width` = levels * head_size key
// channels each.
template <class T>
struct StepCache {
  StepCache(const HsaStreamStep& step, int64_t b_, int64_t key_head)
      : s(step), b(b_), ring(int64_t{s.near} * s.branching), width(int64_t{s.levels} * s.head_size) {
    const int64_t first = (b * s.key_heads + key_head) * s.capacity * ring;
    keys = static_cast<T*>(s.keys) + first * width;
    values = static_cast<T*>(s.values) + first * s.value_size;
    kappas = static_cast<T*>(s.kappas) + first;
    masses = static_cast<T*>(s.masses) + b * s.capacity * ring;
    const int64_t row = b * s.key_heads + key_head;
    new_key = static_cast<const T*>(s.k) + row * width;
    new_value = static_cast<const T*>(s.v) + row * s.value_size;
    new_kappa = s.key_bias == nullptr ? T(0) : static_cast<const T*>(s.key_bias)[row];
    new_mass = s.weight == nullptr ? T(1) : static_cast<const T*>(s.weight)[b];
  }
  int64_t slot(int64_t height, int64_t node) const { return height * ring + node % ring; }

  const HsaStreamStep& s;
  int64_t b, ring, width;
  T *keys, *values, *kappas, *masses;
  const T *new_key, *new_value;
  T new_kappa, new_mass;
};

template <class T>
T dot(const T* x, const T* y, int64_t size) {
  T sums[8] = {};  // independent sums, so that the compiler may use vectors
  int64_t c = 0;
  for (; c + 8 <= size; c += 8)
    for (int64_t x8 = 0; x8 < 8; ++x8) sums[x8] += x[c + x8] * y[c + x8];
  T sum = 0;
  for (T part : sums) sum += part;
  for (; c < size; ++c) sum += x[c] * y[c];
  return sum;
}

// One query head of one sequence: attend to the entries and the token itself.
template <class T>
void attend(const HsaStreamStep& s, int64_t b, int64_t h) {
  const StepCache<T> cache(s, b, h / (s.heads / s.key_heads));
  const int64_t d = s.head_size, dv = s.value_size, B = s.branching, n = s.near;
  std::vector<T> q(cache.width);  // s a_l q^(l), one level after the other
  for (int l = 0; l < s.levels; ++l) {
    const T a = s.level_weights == nullptr ? T(1) : static_cast<const T*>(s.level_weights)[h * s.levels + l];
    const T* row = static_cast<const T*>(s.q) + (b * s.heads + h) * cache.width + l * d;
    for (int64_t c = 0; c < d; ++c) q[l * d + c] = static_cast<T>(s.scale) * a * row[c];
  }
  std::vector<T> scores;
  std::vector<const T*> rows;
  auto see = [&](const T* key, const T* value, T kappa, T mass, T position) {
    if (!(mass > T(0))) return;
    scores.push_back(dot(q.data(), key, cache.width) + kappa + std::log(mass) + position);
    rows.push_back(value);
  };
  see(cache.new_key, cache.new_value, cache.new_kappa, cache.new_mass, T(0));
  int64_t ancestor = s.lengths[b];
  for (int64_t height = 0; height == 0 || ancestor >= n; ++height, ancestor /= B) {
    const int64_t end = height == 0 ? ancestor : ancestor - n + 1;
    for (int64_t m = std::max<int64_t>(0, ancestor / B - n + 1) * B; m < end; ++m) {
      const int64_t at = cache.slot(height, m);
      const int64_t table = (((h * s.heights + height) * n + ancestor / B - m / B) * B + ancestor % B) * B + m % B;
      const bool positioned = s.positions != nullptr && height < s.heights;
      see(cache.keys + at * cache.width, cache.values + at * dv, cache.kappas[at], cache.masses[at],
          positioned ? static_cast<const T*>(s.positions)[table] : T(0));
    }
  }
  T* out = static_cast<T*>(s.out) + (b * s.heads + h) * dv;
  std::fill(out, out + dv, T(0));
  if (scores.empty()) return;
  const T peak = *std::max_element(scores.begin(), scores.end());
  T sum = 0;
  for (T& score : scores) sum += score = std::exp(score - peak);
  for (size_t e = 0; e < scores.size(); ++e)
    for (int64_t c = 0; c < dv; ++c) out[c] += scores[e] / sum * rows[e][c];
}

// Adds the token to the rows of one key head; b entries of one height become one entry of the next. The masses are
// those of all heads, so every key head writes the same.
template <class T>
void append(const HsaStreamStep& s, int64_t b) {
  const int64_t dv = s.value_size, B = s.branching;
  int64_t node = s.lengths[b]++;
  for (int64_t height = 0;; ++height, node /= B) {
    for (int64_t h = 0; h < s.key_heads; ++h) {
      const StepCache<T> cache(s, b, h);
      const int64_t to = cache.slot(height, node);
      T* key = cache.keys + to * cache.width;
      T* value = cache.values + to * dv;
      if (height == 0) {
        std::copy_n(cache.new_key, cache.width, key);
        std::copy_n(cache.new_value, dv, value);
        cache.kappas[to] = cache.new_kappa;
        cache.masses[to] = cache.new_mass;
        continue;
      }
      const int64_t first = cache.slot(height - 1, node * B);  // a family lies side by side
      T mass = 0;
      for (int64_t c = 0; c < B; ++c) mass += cache.masses[first + c];
      std::fill_n(key, cache.width, T(0));
      std::fill_n(value, dv, T(0));
      cache.kappas[to] = 0;
      cache.masses[to] = mass;
      for (int64_t at = first; at < first + B; ++at) {
        if (!(cache.masses[at] > T(0))) continue;
        const T share = cache.masses[at] / mass;
        for (int64_t c = 0; c < cache.width; ++c) key[c] += share * cache.keys[at * cache.width + c];
        for (int64_t c = 0; c < dv; ++c) value[c] += share * cache.values[at * dv + c];
        cache.kappas[to] += share * cache.kappas[at];
      }
    }
    if (node % B != B - 1) return;
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
