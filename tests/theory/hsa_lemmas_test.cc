// Lemmas of HSA: its attention is the gradient of its energy, the entropy form, and the cost of balanced trees.
#include <gtest/gtest.h>

#include <cmath>

#include "cases/hsa_case.h"
#include "theory/cost.h"
#include "theory/energy.h"

namespace strata::test {
namespace {

// Trees with weights, some of them zero, position terms, key biases and levels.
std::vector<HsaData<double>> problems() {
  std::vector<HsaData<double>> made;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (const Shape shape : {Shape::kRandom, Shape::kChain, Shape::kStar, Shape::kBalanced, Shape::kLeftDeep}) {
      made.emplace_back(HsaCase{"plain", {9}, shape, 4, 2, 3, 2}, seed);
      made.emplace_back(HsaCase{"weights", {7, 1, 5}, shape, 3, 1, 2, 3, Domain::kSet, true, true}, seed);
      HsaCase levels{"levels", {8, 5}, shape, 4, 2, 2, 2, Domain::kSequence, true, true};
      levels.levels = 3;
      levels.key_heads = 1;
      made.emplace_back(levels, seed);
    }
  }
  return made;
}

// One sequence and head: what the reference says, and the scores per pair.
struct Head {
  Head(const HsaData<double>& d, int64_t n, int64_t h)
      : tree(d.trees[n]), weights(Vector::Ones(tree.tokens())), S(tree.tokens(), tree.tokens()), theta(S) {
    const int64_t T = tree.tokens(), batch = d.batch_of[n], key_head = h / (d.spec.heads / d.spec.key_heads);
    for (int64_t i = 0; i < T; ++i) {
      if (d.spec.weights) weights(i) = d.weights(batch, 0, d.first_row[0][n] + i, 0);
      for (int64_t j = 0; j < T; ++j) {
        S(i, j) = d.spec.key_bias ? d.key_bias(batch, key_head, d.first_row[0][n] + j, 0) : 0.0;
        for (int l = 0; l < d.spec.levels; ++l) {
          const int64_t row = d.first_row[l][n];
          for (int c = 0; c < d.spec.head_size; ++c)
            S(i, j) += d.problem().scale * d.level_weights(0, 0, h, l) * d.q[l](batch, h, row + (i >> l), c) *
                       d.k[l](batch, key_head, row + (j >> l), c);
        }
      }
    }
    if (d.has_positions()) {
      const auto* table = static_cast<const double*>(d.problem().positions);  // (heads, 1, places, places)
      add_position_terms(tree, table + h * d.places * d.places, d.places, S);
    }
    EXPECT_TRUE(hsa_materialize(d.problem(), n, h, theta.data()).ok());
    energy = weights.sum() > 0 ? weights.sum() * d.score(0, 0, n, h) : 0.0;
  }
  const Tree& tree;
  Vector weights;
  Matrix S, theta;
  double energy;  // |root| f(root)
};

template <class Check>
void each_head(const Check& check) {
  for (HsaData<double>& d : problems()) {
    ASSERT_TRUE(hsa_forward_ref(d.problem(), d.outputs()).ok());
    for (size_t n = 0; n < d.trees.size(); ++n) {
      for (int64_t h = 0; h < d.spec.heads; ++h) {
        SCOPED_TRACE(d.spec.name + "\n" + d.trees[n].to_string(40));
        check(Head(d, static_cast<int64_t>(n), h));
      }
    }
  }
}

TEST(Energy, IsThatOfTheReference) {
  each_head([](const Head& head) { EXPECT_NEAR(energy_of(head.tree, head.S, head.weights), head.energy, 1e-12); });
}

// d(|root| f(root)) / dS_ij = w_i theta_ij
TEST(Energy, ItsGradientIsTheAttention) {
  each_head([](const Head& head) {
    constexpr double kStep = 1e-5;
    for (Eigen::Index i = 0; i < head.S.rows(); ++i) {
      for (Eigen::Index j = 0; j < head.S.cols(); ++j) {
        Matrix up = head.S, down = head.S;
        up(i, j) += kStep;
        down(i, j) -= kStep;
        const double slope =
            (energy_of(head.tree, up, head.weights) - energy_of(head.tree, down, head.weights)) / (2 * kStep);
        EXPECT_NEAR(slope, head.weights(i) * head.theta(i, j), 1e-8) << i << " " << j;
      }
    }
  });
}

TEST(Energy, EntropyFormAtTheAttention) {
  each_head([](const Head& head) { EXPECT_NEAR(entropy_form(head.theta, head.S, head.weights), head.energy, 1e-12); });
}

// A random row-stochastic matrix that is block-tied: every node spreads its mass over itself and its siblings.
Matrix random_tied(const Tree& tree, const Vector& weights, std::mt19937_64& random) {
  const std::vector<Span> spans = tree.spans();
  std::vector<double> mass(static_cast<size_t>(tree.families()), 1.0);
  Matrix theta = Matrix::Zero(tree.tokens(), tree.tokens());
  std::normal_distribution<double> normal(0, 2);
  for (int64_t f = 0; f < tree.families(); ++f) {
    const int32_t begin = tree.child_begin()[f], end = tree.child_begin()[f + 1];
    auto span = [&](int32_t at) {
      const int32_t child = tree.children()[at];
      return child < 0 ? spans[~child] : Span{child, child + 1};
    };
    auto part = [&](int32_t at) { return weights.segment(span(at).begin, span(at).end - span(at).begin); };
    for (int32_t c = begin; c < end; ++c) {
      Vector share(end - begin);
      for (int32_t b = begin; b < end; ++b) share(b - begin) = part(b).sum() > 0 ? std::exp(normal(random)) : 0.0;
      if (part(c).sum() == 0) continue;
      share *= mass[f] / share.sum();
      for (int32_t b = begin; b < end; ++b) {
        if (b == c || part(b).sum() == 0) continue;
        for (int64_t i = span(c).begin; i < span(c).end; ++i) {
          if (weights(i) == 0) continue;
          theta.row(i).segment(span(b).begin, span(b).end - span(b).begin) =
              share(b - begin) / part(b).sum() * part(b).transpose();
        }
      }
      const int32_t child = tree.children()[c];
      (child < 0 ? mass[~child] : theta(child, child)) = share(c - begin);
    }
  }
  return theta;
}

TEST(Energy, IsTheMaximumOfTheEntropyForm) {
  std::mt19937_64 random(7);
  double closest = 1e9;
  each_head([&](const Head& head) {
    if (head.weights.sum() == 0) return;
    const double size = head.weights.sum();
    for (int trial = 0; trial < 20; ++trial) {
      const Matrix other = random_tied(head.tree, head.weights, random);
      for (Eigen::Index i = 0; i < other.rows(); ++i)
        EXPECT_NEAR(other.row(i).sum(), head.weights(i) > 0 ? 1.0 : 0.0, 1e-12);
      for (const double step : {1.0, 0.1, 0.01}) {  // tied matrices are a convex set
        const Matrix mixed = (1 - step) * head.theta + step * other;
        const double gap = head.energy - entropy_form(mixed, head.S, head.weights);
        EXPECT_GE(gap, -1e-12);
        if ((other - head.theta).norm() > 0.1) closest = std::min(closest, gap / (step * step * size));
      }
    }
    // Without the ties softmax is the maximiser, with sum_i w_i lse_i, and only a star reaches it.
    double sum = 0;
    for (Eigen::Index i = 0; i < head.S.rows(); ++i)
      sum += head.weights(i) * std::log((head.weights.array() * head.S.row(i).transpose().array().exp()).sum());
    EXPECT_GE(sum, head.energy - 1e-12);
    if (head.tree.families() == 1) {
      EXPECT_NEAR(sum, head.energy, 1e-12);
    }
  });
  EXPECT_GT(closest, 1e-4);  // a strict maximum: others lose in proportion to the square of the step
  EXPECT_LT(closest, 1e9);
}

TEST(Energy, NothingToAttendTo) {
  Tree none, star;
  ASSERT_TRUE(star_tree(0, Domain::kSet, &none).ok());
  ASSERT_TRUE(star_tree(3, Domain::kSet, &star).ok());
  EXPECT_EQ(energy_of(none, Matrix(0, 0), Vector(0)), 0.0);
  EXPECT_EQ(energy_of(star, Matrix::Ones(3, 3), Vector::Zero(3)), 0.0);
}

// ------------------------------------------------------------------------------------------------- cost

TEST(Cost, BalancedTreesCostBetweenTheirBounds) {
  for (const int64_t b : {2, 3, 4, 8, 16, 32}) {
    for (const int64_t T : {1, 2, 3, 5, 8, 9, 16, 17, 31, 64, 81, 100, 255, 256, 257, 1000, 1024, 4096, 32768, 50001}) {
      Tree tree;
      ASSERT_TRUE(balanced_tree(T, b, Domain::kSet, &tree).ok());
      const CostBounds bounds = balanced_cost_bounds(T, b);
      const auto cost = static_cast<double>(tree.cost()), families = static_cast<double>(tree.families());
      const std::string where = std::to_string(T) + " tokens, " + std::to_string(b) + " children";
      EXPECT_LE(static_cast<double>(T - 1) / static_cast<double>(b - 1), families * (1 + 1e-12)) << where;
      EXPECT_LE(families, bounds.families) << where;
      // The families of tokens alone cost T b where b divides T, and their whole ones in any case.
      EXPECT_GE(cost, static_cast<double>((T - T % b) * b)) << where;
      EXPECT_LE(cost, bounds.linear) << where;
      EXPECT_LE(cost, bounds.with_logarithm) << where;
      if (T > b) {
        EXPECT_LE(bounds.linear, bounds.with_logarithm) << where;
      }
    }
    // A whole tree: exactly b^2 (T - 1) / (b - 1), which a factor of at most 2 keeps from T b; the paper's count grows
    // with the height.
    int64_t T = b;
    for (int height = 1; T <= 40000; ++height, T *= b) {
      Tree tree;
      ASSERT_TRUE(balanced_tree(T, b, Domain::kSet, &tree).ok());
      EXPECT_EQ(tree.cost(), b * b * (T - 1) / (b - 1));
      EXPECT_LE(tree.cost(), 2 * T * b);
      EXPECT_DOUBLE_EQ(balanced_cost_bounds(T, b).with_logarithm, static_cast<double>(b * b * T * height));
    }
  }
}

}  // namespace
}  // namespace strata::test
