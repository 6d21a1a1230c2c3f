// The definition of HKT attention (docs/MATH.md, section 1): plain loops in double, written for readability.
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/hkt_check.h"
#include "base/hkt_rows.h"
#include "base/philox.h"
#include "base/text.h"

namespace strata {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

template <class AnyView>
auto* row(const AnyView& view, int64_t b, int64_t h, int64_t t) {
  // Rows of a const view are const.
  using Element = std::conditional_t<std::is_same_v<AnyView, View>, double, const double>;
  const int64_t begin = view.begins != nullptr ? view.begins[b] * view.stride[2] : b * view.stride[0];
  return static_cast<Element*>(view.data) + begin + h * view.stride[1] + t * view.stride[2];
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
  int64_t length() const { return length_of(query_side(p), b); }
  int64_t key_length() const { return length_of(key_side(p), b); }
  int64_t rows() const { return stored_rows(query_side(p), b); }
  int64_t key_rows() const { return stored_rows(key_side(p), b); }
  double weight(int l) const { return static_cast<const double*>(p.weights)[h * p.levels + l]; }
  double bias(int64_t i, int64_t j) const {
    return p.bias.data == nullptr ? 0.0 : row(p.bias, b, h, i)[j * p.bias.stride[3]];
  }

  // -slope |i - j|
  double alibi(int64_t i, int64_t j) const {
    return p.slopes == nullptr ? 0.0 : -static_cast<const double*>(p.slopes)[h] * static_cast<double>(std::abs(i - j));
  }
  // What a weight is multiplied by: 0 if it is dropped, otherwise 1 / (1 - p).
  double kept(int64_t i, int64_t j) const {
    if (p.dropout.probability == 0) return 1;
    const uint32_t threshold = dropout_threshold(p.dropout.probability);
    const bool keep = is_kept(dropout_key(p.dropout.state), threshold, static_cast<uint32_t>(b),
                              static_cast<uint32_t>(h), static_cast<uint32_t>(i), static_cast<uint32_t>(j));
    return keep ? dropout_factor(threshold) : 0;
  }

  // A pair is visible if both tokens are real, the window allows it and its bias is not -inf.
  bool allowed(int64_t i, int64_t j) const {
    return i < length() && j < key_length() && i - p.window_left <= j && j <= i + p.window_right &&
           bias(i, j) != kMinusInfinity;
  }

  // <q^(l)_m, k^(l)_n>
  double product(int l, int64_t m, int64_t n) const {
    return dot(row(p.q[l], b, h, m), p.q[l].stride[3], row(p.k[l], b, key_head(), n), p.k[l].stride[3], p.head_size);
  }

  // S_ij = scale * sum_l a_l <q^(l)_{i >> l}, k^(l)_{j >> l}> + bias_ij - slope |i - j|, -inf if the pair is not
  // visible.
  double score(int64_t i, int64_t j) const {
    if (!allowed(i, j)) return kMinusInfinity;
    double mixed = 0;
    for (int l = 0; l < p.levels; ++l) mixed += weight(l) * product(l, i >> l, j >> l);
    return p.scale * mixed + bias(i, j) + alibi(i, j);
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
  std::vector<double> scores(head.key_rows());
  for (int64_t j = 0; j < head.key_rows(); ++j) scores[j] = head.score(i, j);
  return scores;
}

void fill_zero(const View& view, int64_t b, int64_t heads, int64_t tokens, int64_t channels) {
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < channels; ++c) row(view, b, h, t)[c * view.stride[3]] = 0;
}

// Gradients of one head, added to those of the heads that share its keys (docs/MATH.md, section 1.4).
void backward_head(const Head& head, const HktOutputs& outputs, const HktGradients& g) {
  const HktProblem& p = head.p;
  const int64_t b = head.b, h = head.h, kh = head.key_head();
  const int64_t queries = head.rows(), keys = head.key_rows();
  const int64_t lse_at = hkt_line(p, b, h);

  // dS_ij = P_ij (m_ij <dO_i, v_j> - D_i),   D_i = <dO_i, o_i> - dlse_i,   m_ij the factor of dropout
  std::vector<double> block_sum(queries * keys, 0.0);  // G^(0) = dS; halved in place for the levels above
  for (int64_t i = 0; i < queries; ++i) {
    const double lse = static_cast<const double*>(outputs.lse)[lse_at + i];
    if (lse == kMinusInfinity) continue;
    const double* dout = row(g.dout, b, h, i);
    const double* out = row(outputs.out, b, h, i);
    double D = dot(dout, g.dout.stride[3], out, outputs.out.stride[3], p.value_size);
    if (g.dlse != nullptr) D -= static_cast<const double*>(g.dlse)[lse_at + i];
    for (int64_t j = 0; j < keys; ++j) {
      if (!head.allowed(i, j)) continue;
      const double P = probability(head.score(i, j), lse), kept = head.kept(i, j);
      const double* v = row(p.v, b, kh, j);
      double& dS = block_sum[i * keys + j];
      dS = P * (kept * dot(dout, g.dout.stride[3], v, p.v.stride[3], p.value_size) - D);
      double* dv = row(g.dv, b, kh, j);
      for (int c = 0; c < p.value_size; ++c) dv[c * g.dv.stride[3]] += kept * P * dout[c * g.dout.stride[3]];
      if (g.dbias.data != nullptr) row(g.dbias, b, h, i)[j * g.dbias.stride[3]] += dS;
    }
  }

  // dq^(l) = s a_l G^(l) k^(l),   dk^(l) = s a_l G^(l)^T q^(l),   da_l = s sum_mn G^(l)_mn <q^(l)_m, k^(l)_n>
  int64_t fine_m = queries, fine_n = keys;
  for (int l = 0; l < p.levels; ++l) {
    const int64_t m = hkt_level_tokens(queries, l), n = hkt_level_tokens(keys, l);
    if (l > 0) {
      std::vector<double> coarse(m * n, 0.0);
      for (int64_t i = 0; i < fine_m; ++i)
        for (int64_t j = 0; j < fine_n; ++j) coarse[(i >> 1) * n + (j >> 1)] += block_sum[i * fine_n + j];
      block_sum.swap(coarse);
    }
    fine_m = m;
    fine_n = n;
    double& dweight = static_cast<double*>(g.dweights)[h * p.levels + l];
    for (int64_t i = 0; i < m; ++i) {
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

Status hkt_forward_ref(const HktProblem& problem, const HktOutputs& outputs) {
  if (Status s = hkt_check(problem, outputs); !s.ok()) return s;
  if (Status s = check_reference_dtype(problem.dtype); !s.ok()) return s;
  const HktProblem p = hkt_complete(problem);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const Head head{p, b, h};
      for (int64_t i = 0; i < head.rows(); ++i) {
        const std::vector<double> scores = score_row(head, i);
        const double lse = log_sum_exp(scores);
        static_cast<double*>(outputs.lse)[hkt_line(p, b, h) + i] = lse;
        double* out = row(outputs.out, b, h, i);
        for (int c = 0; c < p.value_size; ++c) {
          double sum = 0;
          for (int64_t j = 0; j < head.key_rows(); ++j) {
            if (scores[j] == kMinusInfinity) continue;
            const double weight = head.kept(i, j) * probability(scores[j], lse);
            sum += weight * row(p.v, b, head.key_head(), j)[c * p.v.stride[3]];
          }
          out[c * outputs.out.stride[3]] = sum;
        }
      }
    }
  }
  return {};
}

Status hkt_backward_ref(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& g) {
  if (Status s = hkt_check(problem, outputs); !s.ok()) return s;
  if (Status s = hkt_check(g, problem); !s.ok()) return s;
  if (Status s = check_reference_dtype(problem.dtype); !s.ok()) return s;
  const HktProblem p = hkt_complete(problem);
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t rows = stored_rows(query_side(p), b), key_rows = stored_rows(key_side(p), b);
    for (int l = 0; l < p.levels; ++l) {
      fill_zero(g.dq[l], b, p.heads, hkt_level_tokens(rows, l), p.head_size);
      fill_zero(g.dk[l], b, p.key_heads, hkt_level_tokens(key_rows, l), p.head_size);
    }
    fill_zero(g.dv, b, p.key_heads, key_rows, p.value_size);
    if (g.dbias.data != nullptr) fill_zero(g.dbias, b, p.heads, rows, key_rows);
  }
  for (int64_t a = 0; a < p.heads * p.levels; ++a) static_cast<double*>(g.dweights)[a] = 0;

  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h) backward_head({p, b, h}, outputs, g);
  return {};
}

Status hkt_materialize(const HktProblem& problem, int64_t b, int64_t h, double* scores, double* attention) {
  double unused = 0;
  if (Status s = hkt_check(problem, {{&unused, {}}, &unused}); !s.ok()) return s;
  if (Status s = check_reference_dtype(problem.dtype); !s.ok()) return s;
  const HktProblem p = hkt_complete(problem);
  if (b < 0 || b >= p.batch) return invalid("batch: expected 0 to ", p.batch - 1, ", got ", b);
  if (h < 0 || h >= p.heads) return invalid("head: expected 0 to ", p.heads - 1, ", got ", h);
  const Head head{p, b, h};
  const int64_t keys = head.key_rows();
  for (int64_t i = 0; i < head.rows(); ++i) {
    const std::vector<double> scored = score_row(head, i);
    const double lse = log_sum_exp(scored);
    for (int64_t j = 0; j < keys; ++j) {
      if (scores != nullptr) scores[i * keys + j] = scored[j];
      if (attention != nullptr) attention[i * keys + j] = probability(scored[j], lse);
    }
  }
  return {};
}

}  // namespace strata
