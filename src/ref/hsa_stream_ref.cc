// The definition of streaming HSA (docs/MATH.md, section 2.5): for every token, the list of entries it sees.
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/hsa_stream_check.h"

namespace strata {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Stream {
  const HsaStreamProblem& p;
  int64_t b, h;

  template <class AnyView, class Element = std::conditional_t<std::is_same_v<AnyView, View>, double, const double>>
  Element* at(const AnyView& view, int64_t t, int64_t c) const {
    return static_cast<Element*>(view.data) + b * view.stride[0] + h * view.stride[1] + t * view.stride[2] +
           c * view.stride[3];
  }
  double weight(int64_t t) const {  // the same for all heads
    return p.weights.data == nullptr ? 1.0 : *Stream{p, b, 0}.at(p.weights, t, 0);
  }
  double kappa(int64_t t) const { return p.key_bias.data == nullptr ? 0.0 : *at(p.key_bias, t, 0); }
};

struct Entry {
  int64_t begin, end;  // tokens it stands for
  int64_t position;    // index into the position table, or -1
  double mass, score;
  std::vector<double> k, v;
  double kappa;  // the mean
};

// The entries of token i that have weight, itself first, with their scores.
std::vector<Entry> entries_of(const Stream& s, int64_t i) {
  const HsaStreamProblem& p = s.p;
  std::vector<Entry> entries;
  auto add = [&](int64_t begin, int64_t end, int64_t position) {
    Entry e{begin, end, position, 0, 0, std::vector<double>(p.head_size, 0.0), std::vector<double>(p.value_size, 0.0),
            0};
    for (int64_t t = begin; t < end; ++t) {
      const double w = s.weight(t);
      if (w == 0) continue;
      e.mass += w;
      e.kappa += w * s.kappa(t);
      for (int c = 0; c < p.head_size; ++c) e.k[c] += w * *s.at(p.k, t, c);
      for (int c = 0; c < p.value_size; ++c) e.v[c] += w * *s.at(p.v, t, c);
    }
    if (e.mass == 0) return;
    for (double& x : e.k) x /= e.mass;
    for (double& x : e.v) x /= e.mass;
    e.kappa /= e.mass;
    for (int c = 0; c < p.head_size; ++c) e.score += p.scale * *s.at(p.q, i, c) * e.k[c];
    e.score += e.kappa + std::log(e.mass);
    if (position >= 0) e.score += static_cast<const double*>(p.positions)[position];
    entries.push_back(std::move(e));
  };
  add(i, i + 1, -1);
  int64_t size = 1;
  for (int64_t height = 0; size <= i; ++height, size *= p.branching) {
    const int64_t node = i / size, place = node % p.branching;
    for (int64_t sibling = 0; sibling < place; ++sibling) {
      const int64_t n = node - place + sibling;
      const bool has = p.positions != nullptr && height < p.heights;
      const int64_t table = ((s.h * p.heights + height) * p.branching + place) * p.branching + sibling;
      add(n * size, (n + 1) * size, has ? table : -1);
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

// What token t of an entry gets as the gradient of its weight, by query i: through log|B| and the means k_B, v_B,
// kappa_B.
double weight_gradient(const Stream& s, const HsaStreamGradients& g, const Entry& e, int64_t i, int64_t t, double dS,
                       double P) {
  double sum = dS * (1 + s.kappa(t) - e.kappa);
  for (int c = 0; c < s.p.head_size; ++c) sum += s.p.scale * dS * *s.at(s.p.q, i, c) * (*s.at(s.p.k, t, c) - e.k[c]);
  for (int c = 0; c < s.p.value_size; ++c) sum += P * *s.at(g.dout, i, c) * (*s.at(s.p.v, t, c) - e.v[c]);
  return sum / e.mass;
}

}  // namespace

Status hsa_stream_forward_ref(const HsaStreamProblem& p, const HsaStreamOutputs& outputs) {
  if (Status s = hsa_stream_check(p, outputs); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const Stream s{p, b, h};
      for (int64_t i = 0; i < p.tokens; ++i) {
        const std::vector<Entry> entries = entries_of(s, i);
        const double lse = log_sum_exp(entries);
        static_cast<double*>(outputs.lse)[(b * p.heads + h) * p.tokens + i] = lse;
        for (int c = 0; c < p.value_size; ++c) {
          double y = 0;
          for (const Entry& e : entries) y += std::exp(e.score - lse) * e.v[c];
          *s.at(outputs.out, i, c) = y;
        }
      }
    }
  }
  return {};
}

Status hsa_stream_backward_ref(const HsaStreamProblem& p, const HsaStreamOutputs& outputs,
                               const HsaStreamGradients& g) {
  if (Status s = hsa_stream_check(p, outputs); !s.ok()) return s;
  if (Status s = hsa_stream_check(g, p); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  double* dpositions = static_cast<double*>(g.dpositions);
  for (int64_t at = 0; dpositions != nullptr && at < p.heads * p.heights * p.branching * p.branching; ++at)
    dpositions[at] = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const Stream s{p, b, h};
      for (int64_t t = 0; t < p.tokens; ++t) {
        for (int c = 0; c < p.head_size; ++c) *s.at(g.dq, t, c) = *s.at(g.dk, t, c) = 0;
        for (int c = 0; c < p.value_size; ++c) *s.at(g.dv, t, c) = 0;
        if (g.dkey_bias.data != nullptr) *s.at(g.dkey_bias, t, 0) = 0;
        if (g.dweights.data != nullptr) *s.at(g.dweights, t, 0) = 0;
      }
      for (int64_t i = 0; i < p.tokens; ++i) {
        const std::vector<Entry> entries = entries_of(s, i);
        const double lse = log_sum_exp(entries);
        double D = g.dlse == nullptr ? 0.0 : -static_cast<const double*>(g.dlse)[(b * p.heads + h) * p.tokens + i];
        for (const Entry& e : entries)
          for (int c = 0; c < p.value_size; ++c) D += std::exp(e.score - lse) * *s.at(g.dout, i, c) * e.v[c];
        for (const Entry& e : entries) {
          const double P = std::exp(e.score - lse);
          double dP = 0;
          for (int c = 0; c < p.value_size; ++c) dP += *s.at(g.dout, i, c) * e.v[c];
          const double dS = P * (dP - D);
          for (int c = 0; c < p.head_size; ++c) *s.at(g.dq, i, c) += p.scale * dS * e.k[c];
          for (int64_t t = e.begin; t < e.end; ++t) {  // each leaf has its share of the mean
            const double share = s.weight(t) / e.mass;
            for (int c = 0; c < p.head_size; ++c) *s.at(g.dk, t, c) += share * p.scale * dS * *s.at(p.q, i, c);
            for (int c = 0; c < p.value_size; ++c) *s.at(g.dv, t, c) += share * P * *s.at(g.dout, i, c);
            if (g.dkey_bias.data != nullptr) *s.at(g.dkey_bias, t, 0) += share * dS;
            if (g.dweights.data != nullptr && s.weight(t) > 0)
              *s.at(g.dweights, t, 0) += weight_gradient(s, g, e, i, t, dS, P);
          }
          if (dpositions != nullptr && e.position >= 0) dpositions[e.position] += dS;
        }
      }
    }
  }
  return {};
}

}  // namespace strata
