// The definition of HKT attention (docs/MATH.md, section 1): plain loops in double, written for readability.
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/hkt_check.h"
#include "base/text.h"

namespace strata {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

template <class AnyView>
auto* row(const AnyView& view, int64_t b, int64_t h, int64_t t) {
  // Rows of a const view are const.
  using Element = std::conditional_t<std::is_same_v<AnyView, View>, double, const double>;
  return static_cast<Element*>(view.data) + b * view.stride[0] + h * view.stride[1] + t * view.stride[2];
}

double dot(const double* x, int64_t x_stride, const double* y, int64_t y_stride, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += x[c * x_stride] * y[c * y_stride];
  return sum;
}

// One sequence and one query head of the problem.
struct Head {
  const HktProblem& p;
  int64_t b, h;

  int64_t key_head() const { return h / (p.heads / p.key_heads); }
  int64_t length() const { return p.lengths == nullptr ? p.tokens : p.lengths[b]; }
  double weight(int l) const { return static_cast<const double*>(p.weights)[h * p.levels + l]; }
  double bias(int64_t i, int64_t j) const {
    return p.bias.data == nullptr ? 0.0 : row(p.bias, b, h, i)[j * p.bias.stride[3]];
  }

  // A pair is visible if both tokens are real, causality allows it and its bias is not -inf.
  bool allowed(int64_t i, int64_t j) const {
    return i < length() && j < length() && (!p.causal || j <= i) && bias(i, j) != kMinusInfinity;
  }

  // <q^(l)_m, k^(l)_n>
  double product(int l, int64_t m, int64_t n) const {
    return dot(row(p.q[l], b, h, m), p.q[l].stride[3], row(p.k[l], b, key_head(), n), p.k[l].stride[3], p.head_size);
  }

  // S_ij = scale * sum_l a_l <q^(l)_{i >> l}, k^(l)_{j >> l}> + bias_ij, or -inf if the pair is not visible.
  double score(int64_t i, int64_t j) const {
    if (!allowed(i, j)) return kMinusInfinity;
    double mixed = 0;
    for (int l = 0; l < p.levels; ++l) mixed += weight(l) * product(l, i >> l, j >> l);
    return p.scale * mixed + bias(i, j);
  }
};

// lse = log sum_j exp S_j, -inf for a row without keys. NaN scores give NaN.
double log_sum_exp(const std::vector<double>& scores) {
  double peak = kMinusInfinity;
  bool has_nan = false;
  for (double s : scores) {
    has_nan |= std::isnan(s);
    peak = std::fmax(peak, s);
  }
  if (has_nan) return std::numeric_limits<double>::quiet_NaN();
  if (peak == kMinusInfinity) return kMinusInfinity;
  double sum = 0;
  for (double s : scores) sum += std::exp(s - peak);
  return peak + std::log(sum);
}

// P_j = exp(S_j - lse), 0 if the pair is not visible.
double probability(double score, double lse) { return score == kMinusInfinity ? 0.0 : std::exp(score - lse); }

std::vector<double> score_row(const Head& head, int64_t i) {
  std::vector<double> scores(head.p.tokens);
  for (int64_t j = 0; j < head.p.tokens; ++j) scores[j] = head.score(i, j);
  return scores;
}

void fill_zero(const View& view, int64_t batch, int64_t heads, int64_t tokens, int64_t channels) {
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t c = 0; c < channels; ++c) row(view, b, h, t)[c * view.stride[3]] = 0;
}

// Gradients of one head, added to those of the heads that share its keys (docs/MATH.md, section 1.4).
void backward_head(const Head& head, const HktOutputs& outputs, const HktGradients& g) {
  const HktProblem& p = head.p;
  const int64_t b = head.b, h = head.h, kh = head.key_head();
  const int64_t T = p.tokens;
  const int64_t lse_at = (b * p.heads + h) * T;

  // dS_ij = P_ij (<dO_i, v_j> - D_i),   D_i = <dO_i, o_i> - dlse_i
  std::vector<double> block_sum(T * T, 0.0);  // G^(0) = dS; halved in place for the levels above
  for (int64_t i = 0; i < T; ++i) {
    const double lse = static_cast<const double*>(outputs.lse)[lse_at + i];
    if (lse == kMinusInfinity) continue;
    const double* dout = row(g.dout, b, h, i);
    const double* out = row(outputs.out, b, h, i);
    double D = dot(dout, g.dout.stride[3], out, outputs.out.stride[3], p.value_size);
    if (g.dlse != nullptr) D -= static_cast<const double*>(g.dlse)[lse_at + i];
    for (int64_t j = 0; j < T; ++j) {
      if (!head.allowed(i, j)) continue;
      const double P = probability(head.score(i, j), lse);
      const double* v = row(p.v, b, kh, j);
      block_sum[i * T + j] = P * (dot(dout, g.dout.stride[3], v, p.v.stride[3], p.value_size) - D);
      double* dv = row(g.dv, b, kh, j);
      for (int c = 0; c < p.value_size; ++c) dv[c * g.dv.stride[3]] += P * dout[c * g.dout.stride[3]];
      if (g.dbias.data != nullptr) row(g.dbias, b, h, i)[j * g.dbias.stride[3]] += block_sum[i * T + j];
    }
  }

  // dq^(l) = s a_l G^(l) k^(l),   dk^(l) = s a_l G^(l)^T q^(l),   da_l = s sum_mn G^(l)_mn <q^(l)_m, k^(l)_n>
  int64_t n_fine = T;
  for (int l = 0; l < p.levels; ++l) {
    const int64_t n = hkt_level_tokens(T, l);
    if (l > 0) {
      std::vector<double> coarse(n * n, 0.0);
      for (int64_t i = 0; i < n_fine; ++i)
        for (int64_t j = 0; j < n_fine; ++j) coarse[(i >> 1) * n + (j >> 1)] += block_sum[i * n_fine + j];
      block_sum.swap(coarse);
    }
    n_fine = n;
    double& dweight = static_cast<double*>(g.dweights)[h * p.levels + l];
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const double G = block_sum[i * n + j];
        if (G == 0.0) continue;  // also skips rows without a visible pair, where q or k may be padding
        dweight += p.scale * G * head.product(l, i, j);
        for (int c = 0; c < p.head_size; ++c) {
          const double factor = p.scale * head.weight(l) * G;
          row(g.dq[l], b, h, i)[c * g.dq[l].stride[3]] += factor * row(p.k[l], b, kh, j)[c * p.k[l].stride[3]];
          row(g.dk[l], b, kh, j)[c * g.dk[l].stride[3]] += factor * row(p.q[l], b, h, i)[c * p.q[l].stride[3]];
        }
      }
    }
  }
}

}  // namespace

Status hkt_forward_ref(const HktProblem& p, const HktOutputs& outputs) {
  if (Status s = hkt_check(p, outputs); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const Head head{p, b, h};
      for (int64_t i = 0; i < p.tokens; ++i) {
        const std::vector<double> scores = score_row(head, i);
        const double lse = log_sum_exp(scores);
        static_cast<double*>(outputs.lse)[(b * p.heads + h) * p.tokens + i] = lse;
        double* out = row(outputs.out, b, h, i);
        for (int c = 0; c < p.value_size; ++c) {
          double sum = 0;
          for (int64_t j = 0; j < p.tokens; ++j) {
            if (scores[j] == kMinusInfinity) continue;
            sum += probability(scores[j], lse) * row(p.v, b, head.key_head(), j)[c * p.v.stride[3]];
          }
          out[c * outputs.out.stride[3]] = sum;
        }
      }
    }
  }
  return {};
}

Status hkt_backward_ref(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g) {
  if (Status s = hkt_check(p, outputs); !s.ok()) return s;
  if (Status s = hkt_check(g, p); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  for (int l = 0; l < p.levels; ++l) {
    const int64_t n = hkt_level_tokens(p.tokens, l);
    fill_zero(g.dq[l], p.batch, p.heads, n, p.head_size);
    fill_zero(g.dk[l], p.batch, p.key_heads, n, p.head_size);
  }
  fill_zero(g.dv, p.batch, p.key_heads, p.tokens, p.value_size);
  if (g.dbias.data != nullptr) fill_zero(g.dbias, p.batch, p.heads, p.tokens, p.tokens);
  for (int64_t a = 0; a < p.heads * p.levels; ++a) static_cast<double*>(g.dweights)[a] = 0;

  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h) backward_head({p, b, h}, outputs, g);
  return {};
}

Status hkt_materialize(const HktProblem& p, int64_t b, int64_t h, double* scores, double* attention) {
  double unused = 0;
  if (Status s = hkt_check(p, {{&unused, {}}, &unused}); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  if (b < 0 || b >= p.batch) return invalid("batch: expected 0 to ", p.batch - 1, ", got ", b);
  if (h < 0 || h >= p.heads) return invalid("head: expected 0 to ", p.heads - 1, ", got ", h);
  const Head head{p, b, h};
  for (int64_t i = 0; i < p.tokens; ++i) {
    const std::vector<double> scored = score_row(head, i);
    const double lse = log_sum_exp(scored);
    for (int64_t j = 0; j < p.tokens; ++j) {
      if (scores != nullptr) scores[i * p.tokens + j] = scored[j];
      if (attention != nullptr) attention[i * p.tokens + j] = probability(scored[j], lse);
    }
  }
  return {};
}

}  // namespace strata
