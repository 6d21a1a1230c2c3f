// The identities of docs/MATH.md, sections 2 and 3, on the reference, one test each. With several levels the softmax
// that the tree approximates is that of HKT.
#include <gtest/gtest.h>

#include <numeric>

#include "cases/hkt_plain.h"
#include "cases/hsa_case.h"
#include "strata/hkt.h"

namespace strata::test {
namespace {

// Small problems of every shape.
std::vector<HsaCase> small_cases() {
  std::vector<HsaCase> cases;
  const std::pair<const char*, Shape> shapes[] = {{"random", Shape::kRandom},
                                                  {"chain", Shape::kChain},
                                                  {"star", Shape::kStar},
                                                  {"balanced", Shape::kBalanced},
                                                  {"left_deep", Shape::kLeftDeep}};
  for (const auto& [name, shape] : shapes) {
    cases.push_back({std::string(name), {9}, shape, 4, 2, 3, 2});
    cases.push_back({std::string(name) + "_weights", {7, 1, 5}, shape, 3, 1, 2, 3, Domain::kSet, true, true});
    cases.push_back({std::string(name) + "_positions", {6, 4}, shape, 4, 2, 2, 2, Domain::kSequence, true, false});
    cases.push_back(
        {std::string(name) + "_causal", {8}, shape, 4, 1, 2, 2, Domain::kSequence, false, true, true, false});
    HsaCase levels{std::string(name) + "_levels", {7, 5}, shape, 4, 2, 2, 2, Domain::kSequence, true, true};
    levels.levels = 3;
    levels.key_heads = 1;
    cases.push_back(levels);
  }
  return cases;
}

class HsaRef : public testing::TestWithParam<HsaCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, HsaRef, testing::ValuesIn(small_cases()),
                         [](const auto& info) { return info.param.name; });

std::vector<double> materialize(const HsaData<double>& d, int64_t n, int64_t h) {
  const int64_t T = d.trees[n].tokens();
  std::vector<double> attention(T * T);
  EXPECT_TRUE(hsa_materialize(d.problem(), n, h, attention.data()).ok());
  return attention;
}

double weight_of(const HsaData<double>& d, int64_t n, int64_t t) {
  return d.spec.weights ? d.weights(d.batch_of[n], 0, d.first_row[0][n] + t, 0) : 1.0;
}

// lse_i and the softmax that HSA approximates: w_j exp(s <q_i, k_j> + kappa_j + E_ij), E at the lowest common family.
struct Softmax {
  Softmax(const HsaData<double>& d, int64_t n, int64_t h) : T(d.trees[n].tokens()), lse(T), attention(T * T, 0.0) {
    const Tree& tree = d.trees[n];
    const int64_t F = tree.families();
    std::vector<int64_t> parent(F + T, -1), place(F + T, 0), depth(F + T, 0);
    for (int64_t f = 0; f < F; ++f) {
      for (int32_t at = tree.child_begin()[f]; at < tree.child_begin()[f + 1]; ++at) {
        const int64_t child = tree.children()[at] < 0 ? ~tree.children()[at] : F + tree.children()[at];
        parent[child] = f;
        place[child] = at - tree.child_begin()[f];
        depth[child] = depth[f] + 1;
      }
    }
    const int64_t b = d.batch_of[n], first = d.first_row[0][n], key_head = h / (d.spec.heads / d.spec.key_heads);
    for (int64_t i = 0; i < T; ++i) {
      std::vector<double> scores(T, -std::numeric_limits<double>::infinity());
      double sum = 0;
      for (int64_t j = 0; j < T; ++j) {
        if (weight_of(d, n, j) == 0 || (d.spec.causal && j > i)) continue;
        double s = 0;
        for (int l = 0; l < d.spec.levels; ++l) {
          const int64_t row = d.first_row[l][n];
          for (int c = 0; c < d.spec.head_size; ++c)
            s += d.level_weights(0, 0, h, l) * d.q[l](b, h, row + (i >> l), c) * d.k[l](b, key_head, row + (j >> l), c);
        }
        s = s * d.problem().scale + std::log(weight_of(d, n, j));
        if (d.spec.key_bias) s += d.key_bias(b, key_head, first + j, 0);
        if (i != j && d.has_positions()) {
          int64_t x = F + i, y = F + j;
          while (parent[x] != parent[y]) (depth[x] >= depth[y] ? x : y) = parent[depth[x] >= depth[y] ? x : y];
          s += d.positions(0, h, 0, place[x] * d.places + place[y]);
        }
        scores[j] = s;
        sum += std::exp(s);
      }
      lse[i] = std::log(sum);
      for (int64_t j = 0; j < T; ++j) attention[i * T + j] = sum > 0 ? std::exp(scores[j] - lse[i]) : 0.0;
    }
  }
  int64_t T;
  std::vector<double> lse, attention;
};

// sum_i w_i KL(theta_i || softmax_i)
double weighted_kl(const HsaData<double>& d, int64_t n, const std::vector<double>& theta, const Softmax& softmax) {
  double sum = 0;
  for (int64_t i = 0; i < softmax.T; ++i) {
    for (int64_t j = 0; j < softmax.T; ++j) {
      const double p = theta[i * softmax.T + j];
      if (p > 0) sum += weight_of(d, n, i) * p * (std::log(p) - std::log(softmax.attention[i * softmax.T + j]));
    }
  }
  return sum;
}

TEST_P(HsaRef, RowsSumToOneAndTheOutputIsTheMatrixTimesV) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    HsaData<double> d(GetParam(), seed);
    ASSERT_TRUE(hsa_forward_ref(d.problem(), d.outputs()).ok());
    for (size_t n = 0; n < d.trees.size(); ++n) {
      const int64_t T = d.trees[n].tokens(), b = d.batch_of[n], first = d.first_row[0][n];
      const auto theta = materialize(d, n, 0);
      for (int64_t i = 0; i < T; ++i) {
        const bool real = weight_of(d, n, i) > 0;
        EXPECT_NEAR(std::accumulate(&theta[i * T], &theta[i * T] + T, 0.0), real ? 1.0 : 0.0, 1e-12) << d.trees[n];
        for (int c = 0; c < d.spec.value_size; ++c) {
          double y = 0;
          for (int64_t j = 0; j < T; ++j) y += theta[i * T + j] * d.v(b, 0, first + j, c);
          EXPECT_NEAR(d.out(b, 0, first + i, c), y, 1e-12) << d.trees[n];
        }
      }
    }
  }
}

// Every leaf of c gives every leaf of a sibling b the same attention per unit weight.
TEST_P(HsaRef, BlockConstraintHolds) {
  HsaData<double> d(GetParam());
  for (size_t n = 0; n < d.trees.size(); ++n) {
    const Tree& tree = d.trees[n];
    const auto theta = materialize(d, n, 0);
    const int64_t T = tree.tokens(), F = tree.families();
    std::vector<std::pair<int64_t, int64_t>> range(F);
    for (int64_t f = F - 1; f >= 0; --f) {
      auto span = [&](int32_t child) {
        return child >= 0 ? std::pair<int64_t, int64_t>(child, child + 1) : range[~child];
      };
      const int32_t begin = tree.child_begin()[f], end = tree.child_begin()[f + 1];
      range[f] = {span(tree.children()[begin]).first, span(tree.children()[end - 1]).second};
      for (int32_t c = begin; c < end; ++c) {
        for (int32_t b = begin; b < end; ++b) {
          if (b == c) continue;
          double tied = -1;
          for (int64_t i = span(tree.children()[c]).first; i < span(tree.children()[c]).second; ++i) {
            for (int64_t j = span(tree.children()[b]).first; j < span(tree.children()[b]).second; ++j) {
              if (weight_of(d, n, i) == 0 || weight_of(d, n, j) == 0) continue;
              const double per_weight = theta[i * T + j] / weight_of(d, n, j);
              if (tied < 0) tied = per_weight;
              EXPECT_NEAR(per_weight, tied, 1e-13) << tree;
            }
          }
        }
      }
    }
  }
}

// sum_i w_i KL_i = sum_i w_i lse_i - |root| f(root), also for the masked tree with causal lse.
TEST_P(HsaRef, ClosedFormOfTheKL) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    HsaData<double> d(GetParam(), seed);
    ASSERT_TRUE(hsa_forward_ref(d.problem(), d.outputs()).ok());
    for (size_t n = 0; n < d.trees.size(); ++n) {
      const Softmax softmax(d, n, 0);
      double total = 0, weight = 0;
      for (int64_t i = 0; i < softmax.T; ++i) {
        const double w = weight_of(d, n, i);
        weight += w;
        if (w > 0) total += w * softmax.lse[i];
      }
      if (weight == 0) continue;
      const double want = weighted_kl(d, n, materialize(d, n, 0), softmax);
      EXPECT_NEAR(total - weight * d.score(0, 0, n, 0), want, 1e-10) << d.trees[n];
      EXPECT_GE(want, -1e-12);
    }
  }
}

// It is the minimiser: no block-tied row-stochastic matrix near it, or far from it, does better. Any such matrix is
// given by probabilities of each node's row over {itself, its siblings}; exponentiated-gradient descent from random
// starts ends at the same value.
TEST(HsaOptimality, NoBlockTiedMatrixIsCloserToSoftmax) {
  std::mt19937_64 random(3);
  for (Shape shape : {Shape::kRandom, Shape::kLeftDeep, Shape::kBalanced}) {
    HsaData<double> d({"optimum", {7}, shape, 3, 1, 2, 2, Domain::kSequence, true, true}, 11);
    const Tree& tree = d.trees[0];
    const Softmax softmax(d, 0, 0);
    const int64_t F = tree.families(), T = tree.tokens();
    std::vector<double> weight(F + T);
    for (int64_t t = 0; t < T; ++t) weight[F + t] = weight_of(d, 0, t);
    auto node_of = [&](int32_t child) { return child < 0 ? int64_t{~child} : F + child; };
    for (int64_t f = F - 1; f >= 0; --f)
      for (int32_t at = tree.child_begin()[f]; at < tree.child_begin()[f + 1]; ++at)
        weight[f] += weight[node_of(tree.children()[at])];
    std::vector<std::vector<std::vector<double>>> logits(F);
    auto build = [&] {  // theta from the nodes' logits
      std::vector<std::vector<double>> row(F + T, std::vector<double>(T, 0.0));
      std::vector<double> mass(F + T, 1.0);
      for (int64_t f = 0; f < F; ++f) {
        const int32_t begin = tree.child_begin()[f], size = tree.child_begin()[f + 1] - begin;
        for (int32_t c = 0; c < size; ++c) {
          const int64_t node = node_of(tree.children()[begin + c]);
          row[node] = row[f];
          double sum = 0;
          for (int32_t b = 0; b < size; ++b) {
            if (weight[node_of(tree.children()[begin + b])] > 0) sum += std::exp(logits[f][c][b]);
          }
          for (int32_t b = 0; b < size; ++b) {
            const int64_t other = node_of(tree.children()[begin + b]);
            if (weight[other] == 0) continue;
            const double share = mass[f] * std::exp(logits[f][c][b]) / sum;
            if (b == c) {
              mass[node] = share;
              continue;
            }
            // Spread over the leaves of the sibling by weight.
            std::vector<int64_t> stack = {other};
            while (!stack.empty()) {
              const int64_t at = stack.back();
              stack.pop_back();
              if (at >= F) {
                row[node][at - F] += share * weight[at] / weight[other];
              } else {
                for (int32_t x = tree.child_begin()[at]; x < tree.child_begin()[at + 1]; ++x)
                  stack.push_back(node_of(tree.children()[x]));
              }
            }
          }
        }
      }
      std::vector<double> theta(T * T, 0.0);
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t j = 0; j < T && weight[F + t] > 0; ++j)
          theta[t * T + j] = row[F + t][j] + (j == t ? mass[F + t] : 0.0);
      }
      return theta;
    };
    const double optimum = weighted_kl(d, 0, materialize(d, 0, 0), softmax);
    for (int start = 0; start < 3; ++start) {
      std::normal_distribution<double> normal;
      std::vector<double*> unknowns;
      for (int64_t f = 0; f < F; ++f) {
        const int32_t size = tree.child_begin()[f + 1] - tree.child_begin()[f];
        logits[f].assign(size, std::vector<double>(size));
        for (auto& line : logits[f])
          for (double& x : line) {
            x = normal(random);
            unknowns.push_back(&x);
          }
      }
      // Coordinate descent with shrinking steps: slow, simple and derivative-free.
      double best = weighted_kl(d, 0, build(), softmax);
      for (double step = 1.0; step > 1e-7; step *= 0.5) {
        for (int sweep = 0; sweep < 12; ++sweep) {
          for (double* x : unknowns) {
            for (double move : {step, -step}) {
              *x += move;
              const double value = weighted_kl(d, 0, build(), softmax);
              if (value < best) {
                best = value;
              } else {
                *x -= move;
              }
            }
          }
        }
      }
      EXPECT_GE(best, optimum - 1e-9) << tree;   // nothing is better,
      EXPECT_NEAR(best, optimum, 1e-4) << tree;  // and the search finds it
    }
  }
}

// A star is flat attention, with several levels HKT.
TEST(HsaIdentity, StarIsSoftmaxAttentionInValuesAndGradients) {
  for (const auto& [causal, levels] : {std::pair{false, 1}, {true, 1}, {false, 3}, {true, 3}}) {
    HsaCase star{"star", {11}, Shape::kStar, 11, 2, 3, 4, Domain::kSet, false, false, causal};
    star.levels = levels;
    HsaData<double> d(star);
    d.dscore.fill(0);
    ASSERT_TRUE(hsa_forward_ref(d.problem(), d.outputs()).ok());
    ASSERT_TRUE(hsa_backward_ref(d.problem(), d.gradients()).ok());
    HktCase flat{"flat", 1, 2, 2, 11, levels, 3, 4, causal};
    HktData<double> f(flat);
    for (int l = 0; l < levels; ++l) f.q[l].copy_from(d.q[l]), f.k[l].copy_from(d.k[l]);
    f.weights.copy_from(d.level_weights);
    f.v.copy_from(d.v);
    f.dout.copy_from(d.dout);
    f.dlse.fill(0);
    ASSERT_TRUE(hkt_forward_ref(f.problem(), f.outputs()).ok());
    ASSERT_TRUE(hkt_backward_ref(f.problem(), f.outputs(), f.gradients()).ok());
    EXPECT_LT(relative_error(d.out, f.out), 1e-13);
    for (int l = 0; l < levels; ++l) {
      EXPECT_LT(relative_error(d.dq[l], f.dq[l]), 1e-13);
      EXPECT_LT(relative_error(d.dk[l], f.dk[l]), 1e-13);
    }
    if (levels > 1) {
      EXPECT_LT(relative_error(d.dlevel_weights, f.dweights), 1e-12);
    }
    EXPECT_LT(relative_error(d.dv, f.dv), 1e-13);
  }
}

// A leaf of weight 0 is absent; a leaf of weight 2 is two equal siblings.
TEST(HsaIdentity, WeightsCountLeaves) {
  Tree with, without, doubled;
  ASSERT_TRUE(tree_from_parents({5, 5, 6, 6, 6, 7, 7, -1}, Domain::kSet, &with).ok());        // ((0 1) (2 3 4))
  ASSERT_TRUE(tree_from_parents({4, 4, 5, 5, 6, 6, -1}, Domain::kSet, &without).ok());        // ((0 1) (2 4))
  ASSERT_TRUE(tree_from_parents({6, 6, 7, 7, 7, 7, 8, 8, -1}, Domain::kSet, &doubled).ok());  // ((0 1) (2 3 3 4))
  HsaData<double> base({"w", {5}, Shape::kStar, 5, 1, 3, 2, Domain::kSet, true});
  auto run = [&](const Tree& tree, double w3, const std::vector<int64_t>& source) {
    HsaData<double> d({"w", {static_cast<int64_t>(source.size())}, Shape::kStar, 5, 1, 3, 2, Domain::kSet, true});
    d.views = {tree.view()};
    for (size_t t = 0; t < source.size(); ++t) {
      for (int c = 0; c < 3; ++c)
        d.q[0](0, 0, t, c) = base.q[0](0, 0, source[t], c), d.k[0](0, 0, t, c) = base.k[0](0, 0, source[t], c);
      for (int c = 0; c < 2; ++c) d.v(0, 0, t, c) = base.v(0, 0, source[t], c);
      d.weights(0, 0, t, 0) = source[t] == 3 ? w3 : 1.0;
    }
    EXPECT_TRUE(hsa_forward_ref(d.problem(), d.outputs()).ok());
    return d;
  };
  const auto zero = run(with, 0.0, {0, 1, 2, 3, 4}), absent = run(without, 1.0, {0, 1, 2, 4});
  const auto two = run(with, 2.0, {0, 1, 2, 3, 4}), twins = run(doubled, 1.0, {0, 1, 2, 3, 3, 4});
  EXPECT_NEAR(zero.score(0, 0, 0, 0), absent.score(0, 0, 0, 0), 1e-13);
  EXPECT_NEAR(two.score(0, 0, 0, 0), twins.score(0, 0, 0, 0), 1e-13);
  for (int c = 0; c < 2; ++c) {
    EXPECT_NEAR(zero.out(0, 0, 4, c), absent.out(0, 0, 3, c), 1e-13);
    EXPECT_EQ(zero.out(0, 0, 3, c), 0.0);
    EXPECT_NEAR(two.out(0, 0, 3, c), twins.out(0, 0, 4, c), 1e-13);
    EXPECT_NEAR(two.out(0, 0, 0, c), twins.out(0, 0, 0, c), 1e-13);
  }
}

// Permuting the children of a set permutes outputs and nothing else.
TEST(HsaIdentity, SetsHaveNoOrder) {
  Tree tree, swapped;
  ASSERT_TRUE(tree_from_parents({5, 5, 6, 6, 6, 7, 7, -1}, Domain::kSet, &tree).ok());     // ((0 1) (2 3 4))
  ASSERT_TRUE(tree_from_parents({5, 5, 5, 6, 6, 7, 7, -1}, Domain::kSet, &swapped).ok());  // ((0 1 2) (3 4))
  const std::vector<int64_t> order = {4, 2, 3, 1, 0};  // swapped token t was token order[t]
  HsaData<double> a({"sets", {5}, Shape::kStar, 5, 2, 3, 2}), b({"sets", {5}, Shape::kStar, 5, 2, 3, 2});
  a.views = {tree.view()};
  b.views = {swapped.view()};
  for (auto [to, from] : {std::pair{&b.q[0], &a.q[0]}, std::pair{&b.k[0], &a.k[0]}, std::pair{&b.v, &a.v}}) {
    to->each([&, to = to, from = from](int64_t n, int64_t h, int64_t t, int64_t c) {
      (*to)(n, h, t, c) = (*from)(n, h, order[t], c);
    });
  }
  ASSERT_TRUE(hsa_forward_ref(a.problem(), a.outputs()).ok());
  ASSERT_TRUE(hsa_forward_ref(b.problem(), b.outputs()).ok());
  b.out.each([&](int64_t n, int64_t h, int64_t t, int64_t c) {
    EXPECT_NEAR(b.out(n, h, t, c), a.out(n, h, order[t], c), 1e-14);
  });
}

// Central differences of <dout, out> + <dscore, score> for every number of every input.
TEST_P(HsaRef, GradientsByFiniteDifferences) {
  HsaData<double> d(GetParam());
  ASSERT_TRUE(hsa_backward_ref(d.problem(), d.gradients()).ok());
  auto loss = [&] {
    EXPECT_TRUE(hsa_forward_ref(d.problem(), d.outputs()).ok());
    double sum = 0;
    d.out.each([&](auto... at) { sum += d.out(at...) * d.dout(at...); });
    d.score.each([&](auto... at) {
      if (std::isfinite(d.score(at...))) sum += d.score(at...) * d.dscore(at...);
    });
    return sum;
  };
  auto derivative = [&](double& x) {
    constexpr double kStep = 1e-5;
    const double kept = x;
    x = kept + kStep;
    const double up = loss();
    x = kept - kStep;
    const double down = loss();
    x = kept;
    return (up - down) / (2 * kStep);
  };
  auto check = [&](const char* name, Array<double>& input, const Array<double>& gradient) {
    input.each([&](auto... at) {
      EXPECT_NEAR(gradient(at...), derivative(input(at...)), 5e-8) << name << "\n" << d.trees_text();
    });
  };
  for (int l = 0; l < d.spec.levels; ++l) {
    check("q", d.q[l], Array<double>(d.dq[l]));
    check("k", d.k[l], Array<double>(d.dk[l]));
  }
  if (d.spec.levels > 1) check("level_weights", d.level_weights, Array<double>(d.dlevel_weights));
  check("v", d.v, Array<double>(d.dv));
  if (d.spec.key_bias) check("key_bias", d.key_bias, Array<double>(d.dkey_bias));
  if (d.has_positions()) check("positions", d.positions, Array<double>(d.dpositions));
  if (d.spec.weights) {
    d.weights.each([&](int64_t b, int64_t, int64_t t, int64_t) {
      double& w = d.weights(b, 0, t, 0);
      if (w < 0.1) return;  // at 0 the gradient is defined as 0, and near it differences are poor
      double sum = 0;
      for (int64_t h = 0; h < d.spec.key_heads; ++h) sum += d.dweights(b, h, t, 0);
      EXPECT_NEAR(sum, derivative(w), 5e-7) << "weights\n" << d.trees_text();
    });
  }
}

}  // namespace
}  // namespace strata::test
