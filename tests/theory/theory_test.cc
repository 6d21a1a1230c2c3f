// The theory's programs against published examples, NumPy and SciPy, and brute force.
#include <gtest/gtest.h>

#include <cmath>

#include "base/stream_nodes.h"
#include "strata/hsa_stream.h"
#include "theory/certificate.h"
#include "theory/decay.h"
#include "theory/error.h"
#include "theory/gaussianity.h"
#include "theory/psd.h"
#include "theory/random_matrix.h"
#include "theory/subsumption.h"
#include "theory/symmetry.h"

namespace strata {
namespace {

using test::random_matrix;

LevelScores random_scores(Eigen::Index tokens, int levels, bool causal, uint64_t seed) {
  LevelScores scores;
  scores.causal = causal;
  scores.weights = random_matrix(levels, 1, seed).col(0).array().exp();
  scores.weights /= scores.weights.sum();
  for (int l = 0; l < levels; ++l) {
    const Eigen::Index rows = (tokens + (Eigen::Index{1} << l) - 1) >> l;
    scores.levels.push_back(random_matrix(rows, rows, seed + 10 + l));
  }
  return scores;
}

// ------------------------------------------------------------------------------------------------- PSD

TEST(Psd, EigenvaluesAgreeWithNumpy) {  // numpy.linalg.eigvalsh((M + M.T) / 2), NumPy 2
  Matrix M(5, 5);
  M << 0.0, 0.3, -0.27, -0.89, -0.45, -0.99, 0.06, 1.34, -0.49, -0.62, 0.49, 0.36, 0.11, -0.93, -0.03, 0.7, -1.34,
      -0.46, -1.9, -1.29, -1.84, -0.24, -1.27, 0.27, 0.16;
  const double expected[] = {-2.61643899165068, -0.944359595504458, -0.778276389693595, 1.07070655871121,
                             1.69836841813752};
  const PsdResult result = psd_of(M);
  ASSERT_EQ(result.eigenvalues.size(), 5);
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(result.eigenvalues(i), expected[i], 1e-12);
  EXPECT_DOUBLE_EQ(result.negative_count, 0.6);
  EXPECT_NEAR(result.negative_mass, 4.339074976848733 / 7.108149953697463, 1e-12);
  EXPECT_FALSE(result.holds);
}

TEST(Psd, SmallFormHasTheSpectrumOfTheLargeOne) {  // the same, of a product of rank 2; the zeros are left out
  Matrix q(2, 6), k(2, 6);
  q << -0.19, -2.52, -0.54, -0.05, 0.11, -1.53, -0.48, -0.98, -0.81, 1.06, -0.81, -0.03;
  k << 0.88, -0.58, -0.11, 0.11, 0.06, -1.23, 0.08, 1.36, -1.55, 0.86, 0.12, -0.64;
  const double expected[] = {-2.2375502906851, -0.303307067221491, 2.37061580220198, 4.12494155570461};
  for (const PsdResult& result : {psd_of_projections(q, k), psd_of(q.transpose() * k)}) {
    ASSERT_EQ(result.eigenvalues.size(), 4);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(result.eigenvalues(i), expected[i], 1e-12);
  }
}

TEST(Psd, HoldsByConstruction) {  // k = q (I + Omega)^T
  const Matrix W = random_matrix(4, 10, 1), A = random_matrix(4, 4, 2);
  const Matrix K = (Matrix::Identity(4, 4) + A - A.transpose()) * W;
  const PsdResult result = psd_of_projections(W, K);
  EXPECT_TRUE(result.holds) << result.eigenvalues.transpose();
  EXPECT_FALSE(psd_of_projections(W, random_matrix(4, 10, 3)).holds);
  // And then sym(S) is PSD on any inputs, also up-sampled.
  const Matrix X = random_matrix(30, 10, 4), S = X * W.transpose() * K * X.transpose();
  EXPECT_GT(psd_of(upsample(S, 2, 117)).smallest, -1e-9 * S.norm());
  EXPECT_EQ(psd_of(Matrix::Zero(3, 3)).eigenvalues.size(), 0);
  EXPECT_TRUE(psd_of(Matrix::Zero(3, 3)).holds);
}

// ------------------------------------------------------------------------------------------------- symmetry

TEST(Symmetry, SplitIsOrthogonalAndCommutes) {
  const Matrix S = random_matrix(17, 17, 5);
  const SymmetryResult result = symmetry_of(S);
  EXPECT_LT(result.orthogonality, 1e-14);
  EXPECT_NEAR(result.directional_share, 0.25 * (S - S.transpose()).squaredNorm() / S.squaredNorm(), 1e-14);
  EXPECT_LT(upsampling_commutes(S, 2, 66), 1e-14);
  EXPECT_LT(projection_commutes(random_matrix(40, 17, 6), S), 1e-13);
  EXPECT_EQ(symmetry_of(S + S.transpose()).directional_share, 0.0);
  EXPECT_EQ(symmetry_of(Matrix::Zero(4, 4)).directional_share, 0.0);
}

// ------------------------------------------------------------------------------------------------- error

// P_l by its definition, entry by entry.
double block_mean(const Matrix& S, Eigen::Index i, Eigen::Index j, int level, bool causal) {
  double sum = 0;
  int rows = 0;
  for (Eigen::Index r = 0; r < S.rows(); ++r) {
    if (r >> level != i >> level) continue;
    double row = 0;
    int keys = 0;
    for (Eigen::Index c = 0; c < S.cols(); ++c) {
      if (c >> level != j >> level || (causal && c > r)) continue;
      row += S(r, c);
      ++keys;
    }
    if (keys == 0) continue;
    sum += row / keys;
    ++rows;
  }
  return sum / rows;
}

TEST(Error, BlockMeans) {
  const Matrix S = random_matrix(13, 13, 7);
  for (const bool causal : {false, true}) {
    for (int level = 0; level < 4; ++level) {
      const Matrix means = block_means(S, level, causal);
      for (Eigen::Index i = 0; i < 13; ++i) {
        for (Eigen::Index j = 0; j < (causal ? i + 1 : 13); ++j) {
          ASSERT_NEAR(means(i, j), block_mean(S, i, j, level, causal), 1e-12)
              << level << " " << causal << " " << i << " " << j;
        }
      }
    }
  }
}

TEST(Error, ComponentsSumToTheDivergence) {
  for (const bool causal : {false, true}) {
    for (const int levels : {1, 2, 3, 4}) {
      const LevelScores scores = random_scores(37, levels, causal, 20 + levels);
      const ErrorResult result = error_of(scores);
      // KL by its definition: sum p log(p / q).
      const Matrix S = scores.mixed();
      double kl = 0;
      for (Eigen::Index i = 0; i < 37; ++i) {
        double flat_sum = 0, mixed_sum = 0;
        for (Eigen::Index j = 0; j < scores.keys(i); ++j) {
          flat_sum += std::exp(scores.levels[0](i, j));
          mixed_sum += std::exp(S(i, j));
        }
        for (Eigen::Index j = 0; j < scores.keys(i); ++j) {
          const double p = std::exp(scores.levels[0](i, j)) / flat_sum;
          kl += p * (std::log(p) - S(i, j) + std::log(mixed_sum)) / 37;
        }
      }
      EXPECT_NEAR(result.kl, kl, 1e-12);
      EXPECT_LT(result.residual, 1e-9);
      EXPECT_NEAR(result.resolution + result.filter + result.correction, kl, 1e-12);
      if (levels == 1) {
        EXPECT_NEAR(result.kl, 0, 1e-15);
      } else {
        EXPECT_GT(result.resolution, 0);
      }
    }
  }
}

TEST(Error, CumulantsLeadWhereTheRangeIsSmall) {
  LevelScores scores = random_scores(40, 3, false, 30);
  for (Matrix& level : scores.levels) level *= 0.05;
  const ErrorResult result = error_of(scores);
  EXPECT_LT(result.range, 1);
  EXPECT_NEAR(result.correction, result.third + result.fourth, 0.05 * std::abs(result.correction) + 1e-9);
}

// ------------------------------------------------------------------------------------------------- decay

TEST(Decay, BoundHoldsAndTheWholePyramidLosesNothing) {
  for (const bool causal : {false, true}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const std::vector<DecayStep> steps = decay_of(random_scores(33, 4, causal, 40 + seed));
      ASSERT_EQ(steps.size(), 4);
      for (const DecayStep& step : steps) {
        EXPECT_LE(step.worst, 1);
        EXPECT_LE(step.kl, step.bound + 1e-12);
        EXPECT_GE(step.kl, -1e-12);
      }
      EXPECT_GT(steps[0].kl, 0);
      EXPECT_NEAR(steps[3].kl, 0, 1e-12);
      EXPECT_NEAR(steps[3].weight, 1, 1e-12);
    }
  }
}

// ------------------------------------------------------------------------------------------------- Gaussianity

// Fisher's 50 Iris setosa flowers. b1 = 3.079721 and b2 = 26.53766 are the values that R's MVN package prints for them.
const double kSetosa[50][4] = {
    {5.1, 3.5, 1.4, 0.2}, {4.9, 3, 1.4, 0.2},   {4.7, 3.2, 1.3, 0.2}, {4.6, 3.1, 1.5, 0.2}, {5, 3.6, 1.4, 0.2},
    {5.4, 3.9, 1.7, 0.4}, {4.6, 3.4, 1.4, 0.3}, {5, 3.4, 1.5, 0.2},   {4.4, 2.9, 1.4, 0.2}, {4.9, 3.1, 1.5, 0.1},
    {5.4, 3.7, 1.5, 0.2}, {4.8, 3.4, 1.6, 0.2}, {4.8, 3, 1.4, 0.1},   {4.3, 3, 1.1, 0.1},   {5.8, 4, 1.2, 0.2},
    {5.7, 4.4, 1.5, 0.4}, {5.4, 3.9, 1.3, 0.4}, {5.1, 3.5, 1.4, 0.3}, {5.7, 3.8, 1.7, 0.3}, {5.1, 3.8, 1.5, 0.3},
    {5.4, 3.4, 1.7, 0.2}, {5.1, 3.7, 1.5, 0.4}, {4.6, 3.6, 1, 0.2},   {5.1, 3.3, 1.7, 0.5}, {4.8, 3.4, 1.9, 0.2},
    {5, 3, 1.6, 0.2},     {5, 3.4, 1.6, 0.4},   {5.2, 3.5, 1.5, 0.2}, {5.2, 3.4, 1.4, 0.2}, {4.7, 3.2, 1.6, 0.2},
    {4.8, 3.1, 1.6, 0.2}, {5.4, 3.4, 1.5, 0.4}, {5.2, 4.1, 1.5, 0.1}, {5.5, 4.2, 1.4, 0.2}, {4.9, 3.1, 1.5, 0.2},
    {5, 3.2, 1.2, 0.2},   {5.5, 3.5, 1.3, 0.2}, {4.9, 3.6, 1.4, 0.1}, {4.4, 3, 1.3, 0.2},   {5.1, 3.4, 1.5, 0.2},
    {5, 3.5, 1.3, 0.3},   {4.5, 2.3, 1.3, 0.3}, {4.4, 3.2, 1.3, 0.2}, {5, 3.5, 1.6, 0.6},   {5.1, 3.8, 1.9, 0.4},
    {4.8, 3, 1.4, 0.3},   {5.1, 3.8, 1.6, 0.2}, {4.6, 3.2, 1.4, 0.2}, {5.3, 3.7, 1.5, 0.2}, {5, 3.3, 1.4, 0.2}};

TEST(Gaussianity, SetosaAgreesWithRAndScipy) {
  Matrix X(50, 4);
  for (int i = 0; i < 50; ++i) {
    for (int c = 0; c < 4; ++c) X(i, c) = kSetosa[i][c];
  }
  const GaussianityResult result = gaussianity_of(X, 16);
  ASSERT_EQ(result.problem, "");
  EXPECT_EQ(result.components, 4);
  EXPECT_NEAR(result.skewness, 3.079721, 1e-6);
  EXPECT_NEAR(result.kurtosis, 26.53766, 1e-5);
  // The small-sample forms, from NumPy and scipy.stats (SciPy 1.17.1).
  EXPECT_NEAR(result.skewness, 3.07972134235558, 1e-10);
  EXPECT_NEAR(result.kurtosis, 26.5376561614397, 1e-9);
  EXPECT_NEAR(result.skewness_statistic, 27.8597282074536, 1e-8);
  EXPECT_NEAR(result.skewness_p, 0.112761704583029, 1e-9);
  EXPECT_NEAR(result.kurtosis_z, 2.19264469045135, 1e-9);
  EXPECT_NEAR(result.kurtosis_p, 0.0283329885850142, 1e-9);
  EXPECT_EQ(result.ceiling, 4 * 49);
  EXPECT_EQ(result.quantiles.size(), 33);
  EXPECT_TRUE(std::is_sorted(result.quantiles.begin(), result.quantiles.end()));
}

TEST(Gaussianity, TellsNormalFromSkewed) {
  const Matrix normal = random_matrix(400, 5, 50);
  EXPECT_GT(gaussianity_of(normal, 16).skewness_p, 0.001);
  const Matrix skewed = normal.array().exp();
  EXPECT_LT(gaussianity_of(skewed, 16).skewness_p, 1e-6);
  EXPECT_LT(gaussianity_of(skewed, 16).kurtosis_p, 1e-6);
  Matrix lonely = Matrix::Zero(20, 1);  // one row far from the others comes close to the ceiling
  lonely(0, 0) = 1;
  const GaussianityResult far = gaussianity_of(lonely, 16);
  EXPECT_NEAR(far.kurtosis / far.ceiling, 1, 0.1);
  EXPECT_LE(far.kurtosis, far.ceiling);
}

// At equal tails the ratio stays, and z grows with the root of the number of rows: only the ratio compares levels.
TEST(Gaussianity, RatioDoesNotDependOnTheNumberOfRows) {
  auto heavy = [](Eigen::Index rows) -> Matrix {  // normal rows, half of them three times as long
    Matrix X = random_matrix(rows, 3, 57);
    for (Eigen::Index i = 0; i < rows; i += 2) X.row(i) *= 3;
    return X;
  };
  const GaussianityResult few = gaussianity_of(heavy(400), 16), many = gaussianity_of(heavy(6400), 16);
  EXPECT_NEAR(few.kurtosis_ratio, 1.64, 0.15);  // of the mixture: 2 (1 + 3^4) / (1 + 3^2)^2
  EXPECT_NEAR(many.kurtosis_ratio, few.kurtosis_ratio, 0.15);
  EXPECT_NEAR(many.kurtosis_z / few.kurtosis_z, 4, 0.8);
  for (const GaussianityResult& result : {few, many}) {
    EXPECT_DOUBLE_EQ(result.kurtosis_ratio * result.expected_kurtosis, result.kurtosis);
    EXPECT_LT(result.expected_kurtosis, 15);  // p (p + 2), far below the limit
    EXPECT_GT(result.ceiling, 50 * result.expected_kurtosis);
  }
}

TEST(Gaussianity, ScoreRowsInFewColumnsAreTheSame) {
  const Matrix q = random_matrix(60, 6, 51), k = random_matrix(60, 6, 52);
  const GaussianityResult large = gaussianity_of(q * k.transpose(), 4),
                          small = gaussianity_of(score_coordinates(q, k), 4);
  EXPECT_EQ(small.components, 4);
  EXPECT_NEAR(large.skewness, small.skewness, 1e-8);
  EXPECT_NEAR(large.kurtosis, small.kurtosis, 1e-8);
}

TEST(Gaussianity, SaysWhatCannotBeComputed) {
  EXPECT_NE(gaussianity_of(random_matrix(5, 8, 53), 16).problem, "");       // n <= p + 1
  EXPECT_NE(gaussianity_of(Matrix::Constant(30, 3, 2.0), 16).problem, "");  // constant
  EXPECT_NE(gaussianity_of(random_matrix(1, 3, 54), 16).problem, "");
  Matrix broken = random_matrix(30, 3, 55);
  broken(3, 1) = std::nan("");
  EXPECT_NE(gaussianity_of(broken, 16).problem.find("finite"), std::string::npos);
  Matrix flat(30, 3);  // singular: the third column repeats the first
  flat << random_matrix(30, 2, 56), Vector::Zero(30);
  flat.col(2) = flat.col(0);
  EXPECT_EQ(gaussianity_of(flat, 16).components, 2);
  EXPECT_EQ(gaussianity_of(flat, 16).problem, "");
}

// ------------------------------------------------------------------------------------------------- subsumption

TEST(Subsumption, BothSpecialCases) {
  for (const int64_t tokens : {1, 2, 7, 64, 300}) {
    const SubsumptionResult result = subsumption(tokens, 4, 1);
    EXPECT_LT(result.one_level, 1e-5) << tokens;
    EXPECT_LT(result.one_hot, 1e-5) << tokens;
    EXPECT_LT(result.convolution, 1e-5) << tokens;
    EXPECT_EQ(result.largest_stray, 0.0) << tokens;
  }
}

// The node of token j as row i sees it, by the definition: the tallest one that is seen.
int64_t node_size_seen(int64_t i, int64_t j, int64_t b, int64_t near, bool both_sides) {
  int64_t height = 0;
  for (int64_t size = 1;; size *= b, ++height) {
    const int64_t a = i / size, m = j / size, back = a / b - m / b;
    const bool seen = both_sides ? std::abs(back) < near && (height == 0 || std::abs(a - m) >= near)
                                 : back < near && (height == 0 ? m <= a : m <= a - near);
    if (seen) return size;
  }
}

TEST(Certificate, RangesAndProductsAreThoseOfTheNodesSeen) {
  constexpr int64_t kTokens = 61;
  const Matrix scores = random_matrix(kTokens, kTokens, 3);
  for (const bool both_sides : {false, true}) {
    for (const int64_t b : {2, 3, 5}) {
      for (const int64_t near : {1, 2, 4, 100}) {
        const std::vector<double> ranges = node_ranges(scores, b, near, both_sides);
        int64_t products = 0;
        for (int64_t i = 0; i < kTokens; ++i) {
          double widest = 0;
          for (int64_t j = 0; j < (both_sides ? kTokens : i + 1);) {
            const int64_t size = node_size_seen(i, j, b, near, both_sides);
            const auto node = scores.row(i).segment(j, std::min(size, kTokens - j));
            widest = std::max(widest, node.maxCoeff() - node.minCoeff());
            ++products;
            j += size;
          }
          EXPECT_DOUBLE_EQ(ranges[i], widest) << "row " << i << ", b " << b << ", near " << near;
        }
        const StreamProducts counted = stream_products(kTokens, b, near, both_sides);
        EXPECT_EQ(counted.leaves + counted.nodes, products);
        if (!both_sides) {
          EXPECT_EQ(products, hsa_stream_cost(kTokens, static_cast<int>(b), static_cast<int>(near)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace strata
