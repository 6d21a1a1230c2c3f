// Lemmas of HKT: strict subsumption, filters and the split, when the kernel can be PSD.
#include <gtest/gtest.h>

#include <cmath>

#include "strata/hkt.h"
#include "strata/pyramid.h"
#include "theory/psd.h"
#include "theory/random_matrix.h"
#include "theory/subsumption.h"
#include "theory/symmetry.h"

namespace strata {
namespace {

using test::random_matrix;

// ------------------------------------------------------------------------------------------------- strict subsumption

TEST(StrictSubsumption, NeitherAttentionNorConvolutionIsHkt) {
  for (const int64_t tokens : {3, 4, 7, 64, 301}) {
    for (const int64_t taps : {1, 2, 4}) {
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        const StrictResult result = strict_subsumption(tokens, taps, seed);
        EXPECT_LT(result.flat_permuted, 1e-13) << tokens;
        EXPECT_GT(result.hkt_permuted, 1e-3) << tokens << " tokens, seed " << seed;
        EXPECT_EQ(result.convolution_beyond, 0.0) << tokens;
        if (tokens > taps) {
          EXPECT_GT(result.hkt_beyond, 1e-3 / static_cast<double>(tokens))
              << tokens << " tokens, " << taps << " taps, seed " << seed;
        }
      }
    }
  }
  for (const int64_t tokens : {1, 2}) EXPECT_EQ(strict_subsumption(tokens, 4, 1).hkt_permuted, 0.0);
  EXPECT_EQ(strict_subsumption(4, 4, 1).hkt_beyond, 0.0);
  EXPECT_GT(subsumption(16, 4, 1).strict.hkt_permuted, 0.0);
}

// The proof's example: one channel, q = k = v = x, the coarse row m is x_{2m}, and all tokens but the first two are 1.
// Swapping these two changes the mass that both of them get by the factor exp(a_1 (x_1 - x_0)).
TEST(StrictSubsumption, ExampleOfTheProof) {
  for (const int64_t last : {2, 3, 8}) {
    for (const double a : {0.25, 1.0}) {
      auto output = [&](double x0, double x1) {
        Vector x = Vector::Ones(last + 1);
        x(0) = x0, x(1) = x1;
        Vector coarse((last + 2) / 2);
        for (Eigen::Index m = 0; m < coarse.size(); ++m) coarse(m) = x(2 * m);
        const double weights[] = {1 - a, a};
        HktProblem p;
        p.dtype = DType::kFloat64;
        p.batch = p.heads = p.key_heads = p.head_size = p.value_size = 1;
        p.tokens = last + 1;
        p.levels = 2;
        p.causal = true;
        p.weights = weights;
        p.q[0] = p.k[0] = p.v = dense_view(x.data(), 1, last + 1, 1);
        p.q[1] = p.k[1] = dense_view(coarse.data(), 1, coarse.size(), 1);
        Vector out(last + 1), lse(last + 1);
        EXPECT_TRUE(hkt_forward_ref(p, {dense_view(out.data(), 1, last + 1, 1), lse.data()}).ok());
        const double first = std::exp((1 - a) * x0), second = std::exp((1 - a) * x1), factor = std::exp(a * x0);
        const double others = static_cast<double>(last - 1) * std::exp(1.0);
        EXPECT_NEAR(out(last), (factor * (x0 * first + x1 * second) + others) / (factor * (first + second) + others),
                    1e-14);
        return out(last);
      };
      EXPECT_GT(std::abs(output(0.5, -0.5) - output(-0.5, 0.5)), 1e-3) << last << " " << a;
    }
  }
}

// ------------------------------------------------------------------------------------------------- filters and split

Matrix next_level(const Matrix& below, const Matrix& weight, int taps, bool dense, int stride) {
  CausalFilter filter;
  filter.dtype = DType::kFloat64;
  filter.batch = 1;
  filter.tokens = below.rows();
  filter.channels = below.cols();
  filter.taps = taps;
  filter.stride = stride;
  filter.dense = dense;
  filter.x = below.data();
  filter.weight = weight.data();
  Matrix y(filtered_tokens(below.rows(), stride), below.cols());
  EXPECT_TRUE(causal_filter_forward(filter, y.data()).ok());
  return y;
}

TEST(Filters, CommuteWithTheSplitOnEveryLevel) {
  constexpr int kChannels = 5;
  const Matrix M = random_matrix(kChannels, kChannels, 60);
  uint64_t seed = 61;
  for (const Eigen::Index tokens : {1, 2, 7, 37, 64}) {
    for (int taps = 1; taps <= 5; ++taps) {
      for (const bool dense : {false, true}) {
        Matrix below = random_matrix(tokens, kChannels, ++seed);
        for (int level = 0; level < 5; ++level) {  // a filter in front of everything first
          const int stride = level == 0 ? 1 : 2;
          const Matrix weight = random_matrix(dense ? taps * kChannels : taps, kChannels, ++seed);
          const Matrix states = next_level(below, weight, taps, dense, stride);
          const StackedFilter filter = stacked_filter(weight, dense, stride);
          const std::string where = "level " + std::to_string(level) + " of " + std::to_string(tokens) + " tokens, " +
                                    std::to_string(taps) + " taps" + (dense ? ", dense" : "");
          EXPECT_LT(filters_commute(below, states, filter, M), 1e-13) << where;
          const Matrix X = stacked_taps(below, taps, stride), D = filter.D;
          ASSERT_EQ(X.rows(), states.rows()) << where;
          EXPECT_LT((X * D - states).norm(), 1e-13 * states.norm()) << where;
          // A filter that is not the level's own is found out.
          EXPECT_GT(filters_commute(below, states, {stride, D * 1.001}, M), 1e-4) << where;
          below = states;
        }
      }
    }
  }
}

TEST(Filters, ChangeTheDirectedPartOnlyThroughTheProjections) {  // anti(M) = 0 leaves no direction on any level
  const Matrix A = random_matrix(6, 6, 70), below = random_matrix(19, 6, 71), weight = random_matrix(3 * 6, 6, 72);
  const Matrix states = next_level(below, weight, 3, true, 2);
  EXPECT_LT(symmetry_of(states * symmetric_part(A) * states.transpose()).directional_share, 1e-28);
  EXPECT_NEAR(symmetry_of(states * antisymmetric_part(A) * states.transpose()).directional_share, 1, 1e-14);
}

TEST(Symmetry, SplitIsUnique) {
  const Matrix R = random_matrix(23, 23, 73), Q = random_matrix(23, 23, 74);
  const Matrix A = R * R.transpose(), B = Q - Q.transpose(), S = A + B;
  EXPECT_LT((symmetric_part(S) - A).norm(), 1e-14 * S.norm());
  EXPECT_LT((antisymmetric_part(S) - B).norm(), 1e-14 * S.norm());
}

// ------------------------------------------------------------------------------------------------- when PSD can hold

// Weights as in torch's Linear, (d, model): the kernel of W_K^T is that of `key`.
TEST(PsdCondition, NeedsQueriesThatAreAMapOfTheKeys) {
  for (const Eigen::Index d : {1, 3, 8}) {
    const Eigen::Index model = d + 4;
    const Matrix W = random_matrix(d, model, 80 + d), A = random_matrix(d, d, 90 + d);
    const Matrix key = (Matrix::Identity(d, d) + A - A.transpose()) * W;  // PSD mode
    ASSERT_TRUE(psd_of_projections(W, key).holds);
    EXPECT_LT(queries_beyond_keys(W, key), 1e-13);
    // As soon as the queries leave the range of the keys, the condition fails.
    const Matrix moved = W + 1e-3 * random_matrix(d, model, 100 + d);
    EXPECT_GT(queries_beyond_keys(moved, key), 1e-4);
    EXPECT_FALSE(psd_of_projections(moved, key).holds);
    // Independent projections: a share near sqrt(1 - d / model) of the queries lies outside.
    EXPECT_GT(queries_beyond_keys(random_matrix(d, model, 110 + d), key), 0.3);
  }
  // A map of the keys is not enough: sym of the map must be PSD as well.
  const Matrix W = random_matrix(3, 9, 120);
  EXPECT_LT(queries_beyond_keys(-W, W), 1e-13);
  EXPECT_FALSE(psd_of_projections(-W, W).holds);
  // The lemma needs keys of full rank: with one column of W_K zero, the queries of that column are free.
  Matrix query = W, key = W;
  key.row(2).setZero();
  EXPECT_TRUE(psd_of_projections(query, key).holds);
  EXPECT_GT(queries_beyond_keys(query, key), 0.1);
  EXPECT_EQ(queries_beyond_keys(Matrix::Zero(2, 4), key.topLeftCorner(2, 4)), 0.0);
}

// Every M = W_K C W_K^T with sym(C) > 0 is one of PSD mode: sym(C) = R R^T, W = W_K R, Omega = R^-1 anti(C) R^-T.
TEST(PsdCondition, PsdModeLosesNothing) {
  const Matrix W_K = random_matrix(9, 4, 121), P = random_matrix(4, 4, 122), A = random_matrix(4, 4, 123);
  const Matrix C = P * P.transpose() + 0.1 * Matrix::Identity(4, 4) + A - A.transpose();
  const Matrix R = Eigen::LLT<Eigen::MatrixXd>(symmetric_part(C)).matrixL();
  const Matrix W = W_K * R, Omega = R.inverse() * antisymmetric_part(C) * R.inverse().transpose();
  const Matrix M = W_K * C * W_K.transpose();
  EXPECT_LT((Omega + Omega.transpose()).norm(), 1e-12 * Omega.norm());
  EXPECT_LT((W * (Matrix::Identity(4, 4) + Omega) * W.transpose() - M).norm(), 1e-12 * M.norm());
  EXPECT_TRUE(psd_of_projections((W_K * C).transpose(), W_K.transpose()).holds);
}

// With one head and d = model, W_Q = M W_K^-T meets it for any M with sym(M) > 0, and so do all weights near by.
TEST(PsdCondition, HoldsFreelyWithOneHeadOfFullSize) {
  constexpr Eigen::Index kModel = 6;
  const Matrix key = random_matrix(kModel, kModel, 130), R = random_matrix(kModel, kModel, 131),
               A = random_matrix(kModel, kModel, 132);
  const Matrix M = R * R.transpose() + Matrix::Identity(kModel, kModel) + A - A.transpose();
  const Matrix query = (M * key.inverse()).transpose();  // W_q^T W_k = M
  EXPECT_LT((query.transpose() * key - M).norm(), 1e-10 * M.norm());
  EXPECT_TRUE(psd_of_projections(query, key).holds);
  EXPECT_LT(queries_beyond_keys(query, key), 1e-10);
  for (uint64_t seed = 133; seed < 140; ++seed) {
    const Matrix noise = random_matrix(kModel, kModel, seed);
    EXPECT_TRUE(psd_of_projections(query + 1e-3 * noise * query.norm() / noise.norm(), key).holds);
  }
}

// S = [0 a; -a 0]: sym(S) = 0 is PSD and so is its exponential, but sym(exp S) has the eigenvalue 1 - cosh a.
TEST(PsdCondition, ExponentialOfTheScoresItselfIsNotPsd) {
  for (const double a : {0.1, 1.0, 3.0}) {
    Matrix S(2, 2);
    S << 0, a, -a, 0;
    EXPECT_TRUE(psd_of(S).holds);
    EXPECT_TRUE(psd_of(Matrix(symmetric_part(S).array().exp())).holds);
    const PsdResult exponential = psd_of(Matrix(S.array().exp()));
    EXPECT_FALSE(exponential.holds);
    EXPECT_NEAR(exponential.smallest, 1 - std::cosh(a), 1e-12);
  }
  // And so on inputs of a head that meets the condition.
  const Matrix W = random_matrix(4, 8, 140), A = random_matrix(4, 4, 141), X = random_matrix(20, 8, 142) / 8;
  const Matrix S = X * W.transpose() * (Matrix::Identity(4, 4) + 3 * (A - A.transpose())) * W * X.transpose();
  EXPECT_GT(psd_of(S).smallest, -1e-12 * S.norm());
  EXPECT_GT(psd_of(Matrix(symmetric_part(S).array().exp())).smallest, -1e-12 * S.norm());
  EXPECT_LT(psd_of(Matrix(S.array().exp())).smallest, -1e-3);
}

}  // namespace
}  // namespace strata
