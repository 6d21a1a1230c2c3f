#include "theory/energy.h"

#include <cmath>
#include <limits>

namespace strata {
namespace {

// The tokens of every child of a family.
std::vector<Span> child_spans(const Tree& tree, const std::vector<Span>& spans, int64_t family) {
  std::vector<Span> children;
  for (int32_t at = tree.child_begin()[family]; at < tree.child_begin()[family + 1]; ++at) {
    const int32_t child = tree.children()[at];
    children.push_back(child < 0 ? spans[~child] : Span{child, child + 1});
  }
  return children;
}

// log sum_i exp(terms_i)
double log_sum(const Eigen::ArrayXd& terms) {
  const double top = terms.maxCoeff();
  return std::isfinite(top) ? top + std::log((terms - top).exp().sum()) : top;
}

}  // namespace

double energy_of(const Tree& tree, const Matrix& S, const Vector& weights) {
  if (tree.families() == 0) return 0;
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const std::vector<Span> spans = tree.spans();
  std::vector<double> energy(static_cast<size_t>(tree.families()), 0.0);  // |A| f(A)
  for (int64_t family = tree.families() - 1; family >= 0; --family) {     // children come after their parents
    const std::vector<Span> children = child_spans(tree, spans, family);
    const auto count = static_cast<Eigen::Index>(children.size());
    auto part = [&](const Span& span) { return weights.segment(span.begin, span.end - span.begin); };
    for (Eigen::Index c = 0; c < count; ++c) {
      const double own = part(children[c]).sum();  // |c|
      if (own == 0) continue;
      Eigen::ArrayXd terms = Eigen::ArrayXd::Constant(count, kNothing);  // f(c) and g(c, b)
      for (Eigen::Index b = 0; b < count; ++b) {
        const double other = part(children[b]).sum();
        if (b == c || other == 0) continue;
        const auto block = S.block(children[c].begin, children[b].begin, children[c].end - children[c].begin,
                                   children[b].end - children[b].begin);
        terms(b) = part(children[c]).dot(block * part(children[b])) / (own * other) + std::log(other);
      }
      const int32_t child = tree.children()[tree.child_begin()[family] + c];
      terms(c) = child < 0 ? energy[~child] / own : S(child, child) + std::log(own);
      energy[family] += own * log_sum(terms);  // |c| Z_c
    }
  }
  return energy[0];
}

double entropy_form(const Matrix& theta, const Matrix& S, const Vector& weights) {
  double sum = 0;
  for (Eigen::Index i = 0; i < S.rows(); ++i) {
    for (Eigen::Index j = 0; j < S.cols(); ++j) {
      const double share = theta(i, j);
      if (share > 0) sum += weights(i) * share * (S(i, j) - std::log(share / weights(j)));
    }
  }
  return sum;
}

void add_position_terms(const Tree& tree, const double* table, int64_t places, Matrix& S) {
  const std::vector<Span> spans = tree.spans();
  for (int64_t family = 0; family < tree.families(); ++family) {
    if (tree.kind(family) < 0) continue;
    const double* E = table + tree.kind(family) * places * places;
    const std::vector<Span> children = child_spans(tree, spans, family);
    for (size_t c = 0; c < children.size(); ++c) {
      for (size_t b = 0; b < children.size(); ++b) {
        if (b == c) continue;
        S.block(children[c].begin, children[b].begin, children[c].end - children[c].begin,
                children[b].end - children[b].begin)
            .array() += E[static_cast<int64_t>(c) * places + static_cast<int64_t>(b)];
      }
    }
  }
}

}  // namespace strata
