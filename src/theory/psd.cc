#include "theory/psd.h"

namespace strata {
namespace {

constexpr double kZero = 1e-12;  // of the largest eigenvalue

PsdResult from_spectrum(const Vector& all) {
  PsdResult result;
  if (all.size() == 0) return result;
  result.smallest = all.minCoeff();
  const double limit = kZero * all.cwiseAbs().maxCoeff();
  std::vector<double> kept;
  double negative = 0, mass = 0;
  for (const double value : all) {
    if (std::abs(value) <= limit) continue;
    kept.push_back(value);
    mass += std::abs(value);
    if (value < 0) {
      result.negative_count += 1;
      negative -= value;
    }
  }
  result.eigenvalues = Eigen::Map<const Vector>(kept.data(), static_cast<Eigen::Index>(kept.size()));
  result.holds = result.negative_count == 0;
  if (!kept.empty()) {
    result.negative_count /= static_cast<double>(kept.size());
    result.negative_mass = negative / mass;
  }
  return result;
}

}  // namespace

PsdResult psd_of(const Matrix& M) {
  const Matrix symmetric = 0.5 * (M + M.transpose());
  return from_spectrum(Eigen::SelfAdjointEigenSolver<Matrix>(symmetric, Eigen::EigenvaluesOnly).eigenvalues());
}

// sym(M) = B J B^T with B = [W_q^T, W_k^T] and J = [[0, I/2], [I/2, 0]]. With B = Q R, where Q is an orthonormal basis
// of B's columns, it is Q (R J R^T) Q^T, so the small matrix R J R^T has the same eigenvalues, up to zeros.
PsdResult psd_of_projections(const Matrix& query, const Matrix& key) {
  const Eigen::Index d = query.rows(), model = query.cols();
  if (2 * d >= model) return psd_of(query.transpose() * key);
  Eigen::MatrixXd B(model, 2 * d);
  B.leftCols(d) = query.transpose();
  B.rightCols(d) = key.transpose();
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(B);
  const Eigen::MatrixXd R = qr.matrixQR().topRows(2 * d).triangularView<Eigen::Upper>();
  return psd_of(R.leftCols(d) * R.rightCols(d).transpose());  // sym(R_q R_k^T) = R J R^T
}

// With an orthonormal basis Q of the rows of W_k, their kernel is what is orthogonal to Q: W_q - W_q Q Q^T.
double queries_beyond_keys(const Matrix& query, const Matrix& key) {
  const double all = query.norm();
  if (all == 0) return 0;
  const Eigen::ColPivHouseholderQR<Eigen::MatrixXd> qr(key.transpose());
  const Eigen::MatrixXd Q = qr.householderQ() * Eigen::MatrixXd::Identity(key.cols(), qr.rank());
  return (query - query * Q * Q.transpose()).norm() / all;
}

}  // namespace strata
