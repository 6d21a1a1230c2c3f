#include "theory/subsumption.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "strata/hkt.h"
#include "strata/pyramid.h"
#include "util/random.h"

namespace strata {
namespace {

using Floats = std::vector<float>;

// Approximately normal numbers, the same on every machine: sums of uniform numbers.
Floats random_numbers(int64_t count, Random& random) {
  Floats numbers(static_cast<size_t>(count));
  for (float& number : numbers) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.below(1U << 24) / static_cast<double>(1U << 24);
    number = static_cast<float>(sum);
  }
  return numbers;
}

void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error("subsumption: " + status.message());
}

// One head of HKT attention in float32; q and k have a part per level.
Floats attend(const std::vector<Floats>& q, const std::vector<Floats>& k, const Floats& v, const Floats& weights,
              int64_t tokens, int head_size, double scale, bool causal) {
  HktProblem p;
  p.batch = p.heads = p.key_heads = 1;
  p.tokens = tokens;
  p.levels = static_cast<int>(q.size());
  p.head_size = head_size;
  p.value_size = static_cast<int>(static_cast<int64_t>(v.size()) / tokens);
  p.scale = scale;
  p.causal = causal;
  p.weights = weights.data();
  for (int l = 0; l < p.levels; ++l) {
    p.q[l] = dense_view(q[l].data(), 1, hkt_level_tokens(tokens, l), head_size);
    p.k[l] = dense_view(k[l].data(), 1, hkt_level_tokens(tokens, l), head_size);
  }
  p.v = dense_view(v.data(), 1, tokens, p.value_size);
  Floats out(v.size()), lse(static_cast<size_t>(tokens));
  check(hkt_forward(p, {dense_view(out.data(), 1, tokens, p.value_size), lse.data()}));
  return out;
}

// Softmax attention by its definition, in float64.
std::vector<double> softmax_attention(const Floats& q, const Floats& k, const Floats& v, int64_t tokens, int64_t d,
                                      double scale) {
  const int64_t dv = static_cast<int64_t>(v.size()) / tokens;
  std::vector<double> out(v.size(), 0.0), row(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t j = 0; j < tokens; ++j) {
      row[j] = 0;
      for (int64_t c = 0; c < d; ++c) row[j] += scale * q[i * d + c] * k[j * d + c];
    }
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double& score : row) sum += score = std::exp(score - top);
    for (int64_t j = 0; j < tokens; ++j) {
      for (int64_t c = 0; c < dv; ++c) out[i * dv + c] += row[j] / sum * v[j * dv + c];
    }
  }
  return out;
}

// y_t = sum_r w_r x_{t - r}, channel by channel, by its definition. filter: (taps, channels)
std::vector<double> convolution(const Floats& content, const Floats& filter, int64_t tokens, int64_t taps) {
  const int64_t channels = static_cast<int64_t>(content.size()) / tokens;
  std::vector<double> out(content.size(), 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < std::min(taps, t + 1); ++r) {
      for (int64_t c = 0; c < channels; ++c) {
        out[t * channels + c] +=
            static_cast<double>(filter[r * channels + c]) * static_cast<double>(content[(t - r) * channels + c]);
      }
    }
  }
  return out;
}

template <class A, class B>
double largest_difference(const A& a, const B& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

}  // namespace

SubsumptionResult subsumption(int64_t tokens, int64_t taps, uint64_t seed) {
  SubsumptionResult result;
  result.tokens = tokens;
  result.taps = taps;
  Random random(seed);

  // (a) Standard attention: one level, or all weight on it.
  constexpr int kHeadSize = 16, kLevels = 3;
  std::vector<Floats> q, k;
  for (int l = 0; l < kLevels; ++l) {
    q.push_back(random_numbers(hkt_level_tokens(tokens, l) * kHeadSize, random));
    k.push_back(random_numbers(hkt_level_tokens(tokens, l) * kHeadSize, random));
  }
  const Floats v = random_numbers(tokens * kHeadSize, random);
  const double scale = 1 / std::sqrt(static_cast<double>(kHeadSize));
  const std::vector<double> standard = softmax_attention(q[0], k[0], v, tokens, kHeadSize, scale);
  result.one_level = largest_difference(attend({q[0]}, {k[0]}, v, {1.0F}, tokens, kHeadSize, scale, false), standard);
  result.one_hot = largest_difference(attend(q, k, v, {1.0F, 0.0F, 0.0F}, tokens, kHeadSize, scale, false), standard);

  // (b) Any causal convolution: D_0 filters the content, and every token attends to itself by the bits of its position.
  // Two different positions differ in at least one bit, so their score is lower by at least 2 s beta; beyond 104,
  // float32's exp gives 0.
  int bits = 1;
  while ((int64_t{1} << bits) < tokens) ++bits;
  result.head_size = bits;
  result.sharpness = 128;
  const double bit_scale = 1 / std::sqrt(static_cast<double>(bits));
  const auto beta = static_cast<float>(result.sharpness / (2 * bit_scale));
  Floats bit_queries(static_cast<size_t>(tokens * bits)), bit_keys(bit_queries.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int b = 0; b < bits; ++b) {
      bit_keys[t * bits + b] = ((t >> b) & 1) != 0 ? 1.0F : -1.0F;
      bit_queries[t * bits + b] = beta * bit_keys[t * bits + b];
    }
  }
  constexpr int64_t kChannels = 8;
  const Floats content = random_numbers(tokens * kChannels, random), filter = random_numbers(taps * kChannels, random);
  CausalFilter d0;
  d0.batch = 1;
  d0.tokens = tokens;
  d0.channels = kChannels;
  d0.taps = static_cast<int>(taps);
  d0.stride = 1;
  d0.x = content.data();
  d0.weight = filter.data();
  Floats values(content.size());
  check(causal_filter_forward(d0, values.data()));
  result.convolution =
      largest_difference(attend({bit_queries}, {bit_keys}, values, {1.0F}, tokens, bits, bit_scale, true),
                         convolution(content, filter, tokens, taps));
  // The weights themselves: the output for values that are unit vectors.
  const int64_t shown = std::min<int64_t>(tokens, kMaxHeadSize);
  Floats units(static_cast<size_t>(tokens * shown), 0.0F);
  for (int64_t t = 0; t < shown; ++t) units[t * shown + t] = 1.0F;
  const Floats attention = attend({bit_queries}, {bit_keys}, units, {1.0F}, tokens, bits, bit_scale, true);
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t j = 0; j < shown; ++j) {
      if (i != j) result.largest_stray = std::max(result.largest_stray, static_cast<double>(attention[i * shown + j]));
    }
  }
  result.strict = strict_subsumption(tokens, taps, seed);
  return result;
}

}  // namespace strata
