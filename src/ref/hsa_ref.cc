// The definition of HSA attention (docs/MATH.md, sections 2 and 3): plain loops in double over an explicit list of
// nodes. The q and k of a node are those of all levels, one after the other: q = [a_l q^(l)], k = [k^(l)].
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/hsa_check.h"
#include "base/text.h"

namespace strata {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
using Vector = std::vector<double>;

double dot(const Vector& x, const Vector& y) {
  double sum = 0;
  for (size_t c = 0; c < x.size(); ++c) sum += x[c] * y[c];
  return sum;
}
void add(Vector& x, double factor, const Vector& y) {
  for (size_t c = 0; c < y.size(); ++c) x[c] += factor * y[c];
}
// exp(a - b), where -inf - (-inf) counts as -inf.
double exp_difference(double a, double b) { return a == kMinusInfinity ? 0.0 : std::exp(a - b); }

// Nodes: families first (breadth first), then the tokens.
struct Node {
  int64_t parent = -1;
  std::vector<int64_t> children;
  double weight = 0;  // |c|
  double kappa = 0;
  Vector q, k, v;
  double f = kMinusInfinity, Z = kMinusInfinity, m = 0;
  // backward
  Vector Y, dq, dk, dv;
  double mbar = 0, mu = 0, fbar = 0, dweight = 0, dkappa = 0;
};

struct Sequence {
  Sequence(const HsaProblem& problem, int64_t sequence, int64_t head)
      : p(problem), n(sequence), h(head), key_head(h / (p.heads / p.key_heads)), tree(p.trees[n]) {
    nodes.resize(tree.families + tree.tokens);
    for (int64_t f = 0; f < tree.families; ++f) {
      for (int32_t at = tree.child_begin[f]; at < tree.child_begin[f + 1]; ++at) {
        const int64_t child = tree.children[at] < 0 ? ~tree.children[at] : tree.families + tree.children[at];
        nodes[f].children.push_back(child);
        nodes[child].parent = f;
      }
    }
    for (int64_t t = 0; t < tree.tokens; ++t) {
      Node& leaf = token(t);
      leaf.weight = p.weights.data == nullptr ? 1.0 : *at(p.weights, 0, 0, t, 0);  // one for all heads
      leaf.q.assign(width(), 0.0);
      leaf.k.assign(width(), 0.0);
      leaf.v.assign(p.value_size, 0.0);
      if (leaf.weight == 0) continue;  // padding may hold anything
      leaf.kappa = p.key_bias.data == nullptr ? 0.0 : *at(p.key_bias, key_head, 0, t, 0);
      for (int l = 0; l < p.levels; ++l) {
        for (int c = 0; c < p.head_size; ++c) {
          leaf.q[l * p.head_size + c] = level_weight(l) * *at(p.q[l], h, l, t, c);
          leaf.k[l * p.head_size + c] = *at(p.k[l], key_head, l, t, c);
        }
      }
      for (int c = 0; c < p.value_size && p.v.data != nullptr; ++c) leaf.v[c] = *at(p.v, key_head, 0, t, c);
    }
  }

  int64_t width() const { return int64_t{p.levels} * p.head_size; }
  double level_weight(int l) const {
    return p.level_weights == nullptr ? 1.0 : static_cast<const double*>(p.level_weights)[h * p.levels + l];
  }
  Node& token(int64_t t) { return nodes[tree.families + t]; }
  // Channel c of the row that token t has at level l.
  template <class AnyView, class Element = std::conditional_t<std::is_same_v<AnyView, View>, double, const double>>
  Element* at(const AnyView& view, int64_t head, int l, int64_t t, int64_t c) const {
    const int64_t first = l == 0 ? p.first_token[n] : p.first_row[l][n];
    return static_cast<Element*>(view.data) + p.batch_of[n] * view.stride[0] + head * view.stride[1] +
           (first + (t >> l)) * view.stride[2] + c * view.stride[3];
  }
  // Index into the position table, or -1.
  int64_t position_index(const Node& family, size_t c, size_t b) const {
    const int64_t kind = tree.kind[&family - nodes.data()];
    if (p.positions == nullptr || kind < 0) return -1;
    return ((h * p.kinds + kind) * p.places + static_cast<int64_t>(c)) * p.places + static_cast<int64_t>(b);
  }
  // g(c, b) of the c-th and b-th child of a family; -inf if the pair is not visible.
  double g(const Node& family, size_t c, size_t b) const {
    const Node &x = nodes[family.children[c]], &y = nodes[family.children[b]];
    if (y.weight == 0 || (p.causal && b > c)) return kMinusInfinity;
    const int64_t position = position_index(family, c, b);
    const double E = position < 0 ? 0.0 : static_cast<const double*>(p.positions)[position];
    return p.scale * dot(x.q, y.k) + y.kappa + E + std::log(y.weight);
  }

  void bottom_up() {
    for (int64_t t = 0; t < tree.tokens; ++t) {
      Node& leaf = token(t);
      if (leaf.weight > 0) leaf.f = p.scale * dot(leaf.q, leaf.k) + leaf.kappa + std::log(leaf.weight);
    }
    for (int64_t a = tree.families - 1; a >= 0; --a) {
      Node& A = nodes[a];
      A.q.assign(width(), 0.0);
      A.k.assign(width(), 0.0);
      A.v.assign(p.value_size, 0.0);
      for (int64_t c : A.children) A.weight += nodes[c].weight;
      for (size_t c = 0; c < A.children.size(); ++c) {
        Node& child = nodes[A.children[c]];
        double peak = child.f;  // Z = log(exp f + sum exp g), relative to the largest term
        for (size_t b = 0; b < A.children.size(); ++b) peak = b == c ? peak : std::fmax(peak, g(A, c, b));
        double sum = exp_difference(child.f, peak);
        for (size_t b = 0; b < A.children.size(); ++b) sum += b == c ? 0.0 : exp_difference(g(A, c, b), peak);
        child.Z = peak == kMinusInfinity ? kMinusInfinity : peak + std::log(sum);
        if (child.weight == 0) continue;
        const double share = child.weight / A.weight;
        A.f = (A.f == kMinusInfinity ? 0.0 : A.f) + share * child.Z;
        A.kappa += share * child.kappa;
        add(A.q, share, child.q);
        add(A.k, share, child.k);
        add(A.v, share, child.v);
      }
    }
  }

  // Calls spread(child, sibling, mass) for every pair of siblings: the attention of each row of `child` on `sibling`.
  template <class Spread>
  void top_down(const Spread& spread) {
    if (tree.families > 0) nodes[0].m = 1;
    for (int64_t a = 0; a < tree.families; ++a) {
      const Node& A = nodes[a];
      for (size_t c = 0; c < A.children.size(); ++c) {
        Node& child = nodes[A.children[c]];
        child.m = A.m * exp_difference(child.f, child.Z);
        for (size_t b = 0; b < A.children.size(); ++b) {
          if (b != c) spread(A.children[c], A.children[b], A.m * exp_difference(g(A, c, b), child.Z));
        }
      }
    }
  }

  const HsaProblem& p;
  int64_t n, h, key_head;
  const TreeView& tree;
  std::vector<Node> nodes;
};

// Adds the gradients of a leaf to the caller's arrays: those of a coarse row, and of a key head, have several parts.
void add_leaf(Sequence& s, const HsaGradients& gr, int64_t t) {
  const HsaProblem& p = s.p;
  const Node& leaf = s.token(t);
  if (leaf.weight == 0) return;
  for (int l = 0; l < p.levels; ++l) {
    for (int c = 0; c < p.head_size; ++c) {
      const double dq = leaf.dq[l * p.head_size + c];
      *s.at(gr.dq[l], s.h, l, t, c) += s.level_weight(l) * dq;
      *s.at(gr.dk[l], s.key_head, l, t, c) += leaf.dk[l * p.head_size + c];
      if (gr.dlevel_weights != nullptr)
        static_cast<double*>(gr.dlevel_weights)[s.h * p.levels + l] += dq * *s.at(p.q[l], s.h, l, t, c);
    }
  }
  for (int c = 0; c < p.value_size; ++c) *s.at(gr.dv, s.key_head, 0, t, c) += leaf.dv[c];
  if (gr.dweights.data != nullptr) *s.at(gr.dweights, s.key_head, 0, t, 0) += leaf.dweight;
  if (gr.dkey_bias.data != nullptr) *s.at(gr.dkey_bias, s.key_head, 0, t, 0) += leaf.dkappa;
}

// All gradients start at zero, on the rows of the sequences.
void clear(const HsaProblem& p, const HsaGradients& gr) {
  auto clear_array = [](void* data, int64_t count) {
    for (int64_t at = 0; data != nullptr && at < count; ++at) static_cast<double*>(data)[at] = 0;
  };
  clear_array(gr.dpositions, p.heads * p.kinds * p.places * p.places);
  clear_array(gr.dlevel_weights, p.heads * p.levels);
  for (int64_t n = 0; n < p.sequences; ++n) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const Sequence s(p, n, h);
      auto clear_row = [&](const View& view, int64_t head, int l, int64_t t, int channels) {
        for (int c = 0; c < channels && view.data != nullptr; ++c) *s.at(view, head, l, t, c) = 0;
      };
      for (int64_t t = 0; t < s.tree.tokens; ++t) {
        for (int l = 0; l < p.levels; ++l) {
          clear_row(gr.dq[l], h, l, t, p.head_size);
          clear_row(gr.dk[l], s.key_head, l, t, p.head_size);
        }
        clear_row(gr.dv, s.key_head, 0, t, p.value_size);
        clear_row(gr.dweights, s.key_head, 0, t, 1);
        clear_row(gr.dkey_bias, s.key_head, 0, t, 1);
      }
    }
  }
}

// Gradients, by the formulas of docs/MATH.md, section 2.4.
void backward_sequence(Sequence& s, const HsaGradients& gr) {
  const HsaProblem& p = s.p;
  s.bottom_up();
  s.top_down([](int64_t, int64_t, double) {});
  for (Node& node : s.nodes) {
    node.Y.assign(p.value_size, 0.0);
    node.dq.assign(s.width(), 0.0);
    node.dk.assign(s.width(), 0.0);
    node.dv.assign(p.value_size, 0.0);
  }
  for (int64_t t = 0; t < s.tree.tokens; ++t) {
    Node& leaf = s.token(t);
    if (leaf.weight == 0) continue;  // y := 0 there
    for (int c = 0; c < p.value_size; ++c) leaf.Y[c] = *s.at(gr.dout, s.h, 0, t, c);
    leaf.mbar = dot(leaf.Y, leaf.v);
  }
  for (int64_t a = s.tree.families - 1; a >= 0; --a) {
    Node& A = s.nodes[a];
    for (size_t c = 0; c < A.children.size(); ++c) {
      Node& child = s.nodes[A.children[c]];
      child.mu = exp_difference(child.f, child.Z) * child.mbar;
      for (size_t b = 0; b < A.children.size(); ++b) {
        if (b != c) child.mu += exp_difference(s.g(A, c, b), child.Z) * dot(child.Y, s.nodes[A.children[b]].v);
      }
      A.mbar += child.mu;
      add(A.Y, 1.0, child.Y);
    }
  }
  if (s.tree.families > 0 && gr.dscore != nullptr) {
    s.nodes[0].fbar = static_cast<const double*>(gr.dscore)[s.n * p.heads + s.h];
  }
  for (int64_t a = 0; a < s.tree.families; ++a) {
    Node& A = s.nodes[a];
    if (A.weight == 0) continue;
    for (size_t c = 0; c < A.children.size(); ++c) {
      Node& child = s.nodes[A.children[c]];
      if (child.weight == 0) continue;
      const double share = child.weight / A.weight;
      // The gradients that a child gets through the means of its node.
      add(child.dq, share, A.dq);
      add(child.dk, share, A.dk);
      add(child.dv, share, A.dv);
      child.dkappa += share * A.dkappa;
      child.dweight +=
          A.dweight + (A.fbar * (child.Z - A.f) + dot(A.dq, child.q) - dot(A.dq, A.q) + dot(A.dk, child.k) -
                       dot(A.dk, A.k) + dot(A.dv, child.v) - dot(A.dv, A.v) + A.dkappa * (child.kappa - A.kappa)) /
                          A.weight;
      const double z = A.fbar * share;
      child.fbar = exp_difference(child.f, child.Z) * (A.m * (child.mbar - child.mu) + z);
      for (size_t b = 0; b < A.children.size(); ++b) {
        if (b == c) continue;
        Node& other = s.nodes[A.children[b]];
        const double prob = exp_difference(s.g(A, c, b), child.Z);
        if (prob == 0) continue;
        const double gbar = prob * (A.m * (dot(child.Y, other.v) - child.mu) + z);
        add(child.dq, p.scale * gbar, other.k);
        add(other.dk, p.scale * gbar, child.q);
        add(other.dv, A.m * prob, child.Y);
        other.dkappa += gbar;
        other.dweight += gbar / other.weight;
        const int64_t position = s.position_index(A, c, b);
        if (gr.dpositions != nullptr && position >= 0) static_cast<double*>(gr.dpositions)[position] += gbar;
      }
    }
  }
  for (int64_t t = 0; t < s.tree.tokens; ++t) {
    Node& leaf = s.token(t);
    if (leaf.weight > 0) {
      add(leaf.dq, p.scale * leaf.fbar, leaf.k);
      add(leaf.dk, p.scale * leaf.fbar, leaf.q);
      add(leaf.dv, leaf.m, leaf.Y);
      leaf.dkappa += leaf.fbar;
      leaf.dweight += leaf.fbar / leaf.weight;
    }
    add_leaf(s, gr, t);
  }
}

}  // namespace

Status hsa_forward_ref(const HsaProblem& p, const HsaOutputs& outputs) {
  if (Status s = hsa_check(p); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  for (int64_t n = 0; n < p.sequences; ++n) {
    for (int64_t h = 0; h < p.heads; ++h) {
      Sequence s(p, n, h);
      s.bottom_up();
      if (outputs.score != nullptr) {
        static_cast<double*>(outputs.score)[n * p.heads + h] = s.tree.families > 0 ? s.nodes[0].f : kMinusInfinity;
      }
      if (outputs.out.data == nullptr) continue;
      std::vector<Vector> acc(s.nodes.size(), Vector(p.value_size, 0.0));
      s.top_down([&](int64_t c, int64_t b, double mass) {
        if (mass != 0) add(acc[c], mass, s.nodes[b].v);
      });
      for (int64_t a = 0; a < s.tree.families; ++a)
        for (int64_t c : s.nodes[a].children) add(acc[c], 1.0, acc[a]);
      for (int64_t t = 0; t < s.tree.tokens; ++t) {
        const Node& leaf = s.token(t);
        for (int c = 0; c < p.value_size; ++c) {
          *s.at(outputs.out, h, 0, t, c) = leaf.weight == 0 ? 0.0 : acc[s.tree.families + t][c] + leaf.m * leaf.v[c];
        }
      }
    }
  }
  return {};
}

Status hsa_backward_ref(const HsaProblem& p, const HsaGradients& gr) {
  if (Status s = hsa_check(p); !s.ok()) return s;
  if (Status s = hsa_check(gr, p); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  clear(p, gr);
  for (int64_t n = 0; n < p.sequences; ++n) {
    for (int64_t h = 0; h < p.heads; ++h) {
      Sequence s(p, n, h);
      backward_sequence(s, gr);
    }
  }
  return {};
}

Status hsa_materialize(const HsaProblem& p, int64_t n, int64_t h, double* attention) {
  if (Status s = hsa_check(p); !s.ok()) return s;
  if (Status s = check_reference_dtype(p.dtype); !s.ok()) return s;
  if (n < 0 || n >= p.sequences) return invalid("sequence: expected 0 to ", p.sequences - 1, ", got ", n);
  if (h < 0 || h >= p.heads) return invalid("head: expected 0 to ", p.heads - 1, ", got ", h);
  Sequence s(p, n, h);
  s.bottom_up();
  const int64_t T = s.tree.tokens;
  std::vector<Vector> row(s.nodes.size(), Vector(T, 0.0));
  // The leaves below each node, with their share of its mass.
  std::vector<std::vector<int64_t>> leaves(s.nodes.size());
  for (int64_t node = static_cast<int64_t>(s.nodes.size()) - 1; node >= 0; --node) {
    if (node >= s.tree.families) leaves[node] = {node - s.tree.families};
  }
  for (int64_t a = s.tree.families - 1; a >= 0; --a)
    for (int64_t c : s.nodes[a].children) leaves[a].insert(leaves[a].end(), leaves[c].begin(), leaves[c].end());
  s.top_down([&](int64_t c, int64_t b, double mass) {
    for (int64_t t : leaves[b])
      if (mass != 0) row[c][t] += mass * s.token(t).weight / s.nodes[b].weight;
  });
  for (int64_t a = 0; a < s.tree.families; ++a)
    for (int64_t c : s.nodes[a].children) add(row[c], 1.0, row[a]);
  for (int64_t t = 0; t < T; ++t) {
    Vector& own = row[s.tree.families + t];
    own[t] += s.token(t).m;
    for (int64_t j = 0; j < T; ++j) attention[t * T + j] = s.token(t).weight == 0 ? 0.0 : own[j];
  }
  return {};
}

}  // namespace strata
