// The definition of streaming attention (docs/MATH.md, sections 2.5 and 3): for every token, the list of entries it
// sees.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/hsa_stream_check.h"
#include "base/stream_rows.h"

namespace strata {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// One query head of one sequence.
struct Stream {
  const HsaStreamProblem& p;
  int64_t b, h, key_head = h / (p.heads / p.key_heads), tokens = stream_tokens(p, b);

  template <class AnyView, class Element = std::conditional_t<std::is_same_v<AnyView, View>, double, const double>>
  Element* at(const AnyView& view, int64_t head, int64_t t, int64_t c) const {
    const int64_t begin = view.begins != nullptr ? view.begins[b] * view.stride[2] : b * view.stride[0];
    return static_cast<Element*>(view.data) + begin + head * view.stride[1] + t * view.stride[2] + c * view.stride[3];
  }
  double q(int l, int64_t i, int64_t c) const { return *at(p.q[l], h, i >> l, c); }
  double k(int l, int64_t t, int64_t c) const { return *at(p.k[l], key_head, t >> l, c); }
  double v(int64_t t, int64_t c) const { return *at(p.v, key_head, t, c); }
  double level_weight(int l) const {
    return p.level_weights == nullptr ? 1.0 : static_cast<const double*>(p.level_weights)[h * p.levels + l];
  }
  double weight(int64_t t) const { return p.weights.data == nullptr ? 1.0 : *at(p.weights, 0, t, 0); }
  double kappa(int64_t t) const { return p.key_bias.data == nullptr ? 0.0 : *at(p.key_bias, key_head, t, 0); }
};

struct Entry {
  int64_t begin = 0, end = 0;  // tokens it stands for
  double kept = 1;             // what dropout multiplies its weight by
  int64_t position = -1;       // index into the position table, or -1
  double mass = 0, score = 0, kappa = 0;
  std::vector<std::vector<double>> k;  // by level
  std::vector<double> v;
  std::vector<double> product;  // s <q, k> by level
};

// Whether token i sees node m of a height, whose ancestor of i is `a`.
bool sees(const HsaStreamProblem& p, int64_t height, int64_t a, int64_t m) {
  const int64_t back = a / p.branching - m / p.branching;  // families
  if (p.both_sides) return std::abs(back) < p.near && (height == 0 || std::abs(a - m) >= p.near);
  return back < p.near && (height == 0 ? m <= a : m <= a - p.near);
}

// Index of E for node m and the ancestor a at a height; -1 if there is none.
int64_t position_index(const Stream& s, int64_t height, int64_t a, int64_t m) {
  const HsaStreamProblem& p = s.p;
  if (p.positions == nullptr || height >= p.heights || a == m) return -1;  // a token has no position to itself
  const int64_t b = p.branching, distances = hsa_stream_distances(p.near, p.both_sides);
  const int64_t distance = a / b - m / b + (p.both_sides ? p.near - 1 : 0);
  return (((s.h * p.heights + height) * distances + distance) * b + a % b) * b + m % b;
}

// The entry of the tokens begin .. end - 1 as token i sees it; its mass is 0 if none of them has weight.
Entry make_entry(const Stream& s, int64_t i, int64_t begin, int64_t end) {
  const HsaStreamProblem& p = s.p;
  Entry e;
  e.begin = begin, e.end = end;
  e.k.assign(p.levels, std::vector<double>(p.head_size, 0.0));
  e.v.assign(p.value_size, 0.0);
  e.product.assign(p.levels, 0.0);
  for (int64_t t = begin; t < end; ++t) {
    const double w = s.weight(t);
    if (w == 0) continue;
    e.mass += w;
    e.kappa += w * s.kappa(t);
    for (int l = 0; l < p.levels; ++l)
      for (int c = 0; c < p.head_size; ++c) e.k[l][c] += w * s.k(l, t, c);
    for (int c = 0; c < p.value_size; ++c) e.v[c] += w * s.v(t, c);
  }
  if (e.mass == 0) return e;
  e.kappa /= e.mass;
  for (double& x : e.v) x /= e.mass;
  e.score = e.kappa + std::log(e.mass);
  for (int l = 0; l < p.levels; ++l) {
    for (double& x : e.k[l]) x /= e.mass;
    for (int c = 0; c < p.head_size; ++c) e.product[l] += p.scale * s.q(l, i, c) * e.k[l][c];
    e.score += s.level_weight(l) * e.product[l];
  }
  return e;
}

// 0 if dropout drops the weight that token i has for a node, 1 / (1 - p) otherwise.
double kept_factor(const Stream& s, int64_t i, int64_t height, int64_t node) {
  const Dropout& dropout = s.p.dropout;
  if (dropout.probability == 0) return 1;
  const uint32_t threshold = dropout_threshold(dropout.probability);
  const bool kept = is_entry_kept(dropout_key(dropout.state), threshold, s.b, s.h, i, height, node);
  return kept ? dropout_factor(threshold) : 0;
}

// The entries of token i that have weight.
std::vector<Entry> entries_of(const Stream& s, int64_t i) {
  const HsaStreamProblem& p = s.p;
  std::vector<Entry> entries;
  int64_t size = 1;
  for (int64_t height = 0; size <= s.tokens; ++height, size *= p.branching) {
    for (int64_t m = 0; m * size < s.tokens; ++m) {
      if (!sees(p, height, i / size, m)) continue;
      Entry e = make_entry(s, i, m * size, std::min(s.tokens, (m + 1) * size));
      if (e.mass == 0) continue;
      e.kept = kept_factor(s, i, height, m);
      e.position = position_index(s, height, i / size, m);
      if (e.position >= 0) e.score += static_cast<const double*>(p.positions)[e.position];
      entries.push_back(std::move(e));
    }
  }
  return entries;
}

double log_sum_exp(const std::vector<Entry>& entries) {
  double peak = kMinusInfinity, sum = 0;
  for (const Entry& e : entries) peak = std::fmax(peak, e.score);
  if (entries.empty()) return kMinusInfinity;
  for (const Entry& e : entries) sum += std::exp(e.score - peak);
  return peak + std::log(sum);
}

struct Backward {
  const Stream& s;
  const HsaStreamGradients& g;

  // What token t of an entry gets as the gradient of its weight, by query i: through log|m| and the means.
  double weight_gradient(const Entry& e, int64_t i, int64_t t, double dS, double P) const {
    const HsaStreamProblem& p = s.p;
    double sum = dS * (1 + s.kappa(t) - e.kappa);
    for (int l = 0; l < p.levels; ++l)
      for (int c = 0; c < p.head_size; ++c)
        sum += s.level_weight(l) * p.scale * dS * s.q(l, i, c) * (s.k(l, t, c) - e.k[l][c]);
    for (int c = 0; c < p.value_size; ++c) sum += P * *s.at(g.dout, s.h, i, c) * (s.v(t, c) - e.v[c]);
    return sum / e.mass;
  }

  void add_entry(const Entry& e, int64_t i, double dS, double P) const {
    const HsaStreamProblem& p = s.p;
    for (int l = 0; l < p.levels; ++l) {
      const double factor = p.scale * s.level_weight(l) * dS;
      for (int c = 0; c < p.head_size; ++c) *s.at(g.dq[l], s.h, i >> l, c) += factor * e.k[l][c];
      if (g.dlevel_weights != nullptr) static_cast<double*>(g.dlevel_weights)[s.h * p.levels + l] += dS * e.product[l];
    }
    for (int64_t t = e.begin; t < e.end; ++t) {  // each leaf has its share of the mean
      const double share = s.weight(t) / e.mass;
      if (share == 0) continue;
      for (int l = 0; l < p.levels; ++l) {
        const double factor = share * p.scale * s.level_weight(l) * dS;
        for (int c = 0; c < p.head_size; ++c) *s.at(g.dk[l], s.key_head, t >> l, c) += factor * s.q(l, i, c);
      }
      for (int c = 0; c < p.value_size; ++c) *s.at(g.dv, s.key_head, t, c) += share * P * *s.at(g.dout, s.h, i, c);
      if (g.dkey_bias.data != nullptr) *s.at(g.dkey_bias, s.key_head, t, 0) += share * dS;
      if (g.dweights.data != nullptr) *s.at(g.dweights, s.key_head, t, 0) += weight_gradient(e, i, t, dS, P);
    }
    if (g.dpositions != nullptr && e.position >= 0) static_cast<double*>(g.dpositions)[e.position] += dS;
  }

  void add_query(int64_t i) const {
    const HsaStreamProblem& p = s.p;
    const std::vector<Entry> entries = entries_of(s, i);
    const double lse = log_sum_exp(entries);
    std::vector<double> dP(entries.size(), 0.0);
    double D = g.dlse == nullptr ? 0.0 : -static_cast<const double*>(g.dlse)[stream_line(p, s.b, s.h) + i];
    for (size_t n = 0; n < entries.size(); ++n) {
      for (int c = 0; c < p.value_size; ++c) dP[n] += entries[n].kept * *s.at(g.dout, s.h, i, c) * entries[n].v[c];
      D += std::exp(entries[n].score - lse) * dP[n];
    }
    for (size_t n = 0; n < entries.size(); ++n) {
      const double P = std::exp(entries[n].score - lse);
      add_entry(entries[n], i, P * (dP[n] - D), P * entries[n].kept);
    }
  }
};

// All gradients start at zero.
void clear(const HsaStreamProblem& p, const HsaStreamGradients& g) {
  auto clear_view = [&](int64_t b, const View& view, int64_t heads, int64_t tokens, int64_t channels) {
    if (view.data == nullptr) return;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t c = 0; c < channels; ++c) *Stream{p, b, h}.at(view, h, t, c) = 0;
  };
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t tokens = stream_tokens(p, b);
    for (int l = 0; l < p.levels; ++l) {
      clear_view(b, g.dq[l], p.heads, hkt_level_tokens(tokens, l), p.head_size);
      clear_view(b, g.dk[l], p.key_heads, hkt_level_tokens(tokens, l), p.head_size);
    }
    clear_view(b, g.dv, p.key_heads, tokens, p.value_size);
    clear_view(b, g.dkey_bias, p.key_heads, tokens, 1);
    clear_view(b, g.dweights, p.key_heads, tokens, 1);
  }
  auto clear_array = [](void* data, int64_t count) {
    for (int64_t at = 0; data != nullptr && at < count; ++at) static_cast<double*>(data)[at] = 0;
  };
  clear_array(g.dlevel_weights, p.heads * p.levels);
  clear_array(g.dpositions,
              p.heads * p.heights * hsa_stream_distances(p.near, p.both_sides) * p.branching * p.branching);
}

// f(stream, token) for all queries.
template <class F>
void each_query(const HsaStreamProblem& p, const F& f) {
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const Stream s{p, b, h};
      for (int64_t i = 0; i < s.tokens; ++i) f(s, i);
    }
  }
}

}  // namespace

Status hsa_stream_forward_ref(const HsaStreamProblem& p, const HsaStreamOutputs& outputs) {
  if (Status s = hsa_stream_check(p, outputs); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  each_query(p, [&](const Stream& s, int64_t i) {
    const std::vector<Entry> entries = entries_of(s, i);
    const double lse = log_sum_exp(entries);
    static_cast<double*>(outputs.lse)[stream_line(p, s.b, s.h) + i] = lse;
    for (int c = 0; c < p.value_size; ++c) {
      double y = 0;
      for (const Entry& e : entries) y += e.kept * std::exp(e.score - lse) * e.v[c];
      *s.at(outputs.out, s.h, i, c) = y;
    }
  });
  return {};
}

Status hsa_stream_backward_ref(const HsaStreamProblem& p, const HsaStreamOutputs& outputs,
                               const HsaStreamGradients& g) {
  if (Status s = hsa_stream_check(p, outputs); !s.ok()) return s;
  if (Status s = hsa_stream_check(g, p); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  clear(p, g);
  each_query(p, [&](const Stream& s, int64_t i) { Backward{s, g}.add_query(i); });
  return {};
}

Status hsa_stream_materialize(const HsaStreamProblem& p, int64_t b, int64_t h, double* attention) {
  double unused = 0;
  const View any{&unused, {}};
  if (Status s = hsa_stream_check(p, {any, &unused}); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  if (Status s = check_range("batch", b, 0, p.batch - 1); !s.ok()) return s;
  if (Status s = check_range("head", h, 0, p.heads - 1); !s.ok()) return s;
  const Stream s{p, b, h};
  for (int64_t i = 0; i < s.tokens; ++i) {
    for (int64_t t = 0; t < s.tokens; ++t) attention[i * s.tokens + t] = 0;
    const std::vector<Entry> entries = entries_of(s, i);
    const double lse = log_sum_exp(entries);
    for (const Entry& e : entries)
      for (int64_t t = e.begin; t < e.end; ++t)
        attention[i * s.tokens + t] += std::exp(e.score - lse) * s.weight(t) / e.mass;
  }
  return {};
}

}  // namespace strata
