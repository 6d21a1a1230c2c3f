// Two inputs that tell HKT from flat attention and from a convolution, in float64, by the definitions.
#include <cmath>
#include <stdexcept>
#include <vector>

#include "strata/hkt.h"
#include "strata/pyramid.h"
#include "theory/matrix.h"
#include "theory/subsumption.h"
#include "util/random.h"

namespace strata {
namespace {

constexpr int kChannels = 8, kTaps = 3;  // of the model, and of the pyramid's filters

Matrix uniform_matrix(Eigen::Index rows, Eigen::Index columns, Random& random) {  // entries of variance 1
  Matrix made(rows, columns);
  for (double& entry : made.reshaped()) entry = std::sqrt(12.0) * (random.unit() - 0.5);
  return made;
}

void expect_ok(const Status& status) {
  if (!status.ok()) throw std::runtime_error("strict subsumption: " + status.message());
}

// x: (tokens, channels), weight: (taps, channels)
Matrix filtered(const Matrix& x, const Matrix& weight, int stride) {
  CausalFilter filter;
  filter.dtype = DType::kFloat64;
  filter.batch = 1;
  filter.tokens = x.rows();
  filter.channels = x.cols();
  filter.taps = static_cast<int>(weight.rows());
  filter.stride = stride;
  filter.x = x.data();
  filter.weight = weight.data();
  Matrix y(filtered_tokens(x.rows(), stride), x.cols());
  expect_ok(causal_filter_forward(filter, y.data()));
  return y;
}

// One causal head without positions. Level l + 1 is level l filtered by filters[l]; no filters: flat attention.
struct CausalHead {
  Matrix query, key, value;     // (channels, channels)
  std::vector<Matrix> filters;  // (taps, channels) each
  Vector weights;               // one per level

  // The output at the last token of x, (tokens, channels).
  Vector last(const Matrix& x) const {
    const Eigen::Index T = x.rows();
    HktProblem p;
    p.dtype = DType::kFloat64;
    p.batch = p.heads = p.key_heads = 1;
    p.tokens = T;
    p.levels = static_cast<int>(weights.size());
    p.head_size = p.value_size = kChannels;
    p.scale = 1 / std::sqrt(static_cast<double>(kChannels));
    p.causal = true;
    p.weights = weights.data();
    std::vector<Matrix> q, k;
    Matrix states = x;
    for (int l = 0; l < p.levels; ++l) {
      if (l > 0) states = filtered(states, filters[l - 1], 2);
      q.push_back(states * query);
      k.push_back(states * key);
    }
    for (int l = 0; l < p.levels; ++l) {
      p.q[l] = dense_view(q[l].data(), 1, q[l].rows(), kChannels);
      p.k[l] = dense_view(k[l].data(), 1, k[l].rows(), kChannels);
    }
    const Matrix v = x * value;
    p.v = dense_view(v.data(), 1, T, kChannels);
    Matrix out(T, kChannels);
    Vector lse(T);
    expect_ok(hkt_forward_ref(p, {dense_view(out.data(), 1, T, kChannels), lse.data()}));
    return out.row(T - 1);
  }
};

}  // namespace

StrictResult strict_subsumption(int64_t tokens, int64_t taps, uint64_t seed) {
  Random random(seed);
  const Matrix x = uniform_matrix(tokens, kChannels, random);
  CausalHead flat;
  for (Matrix* weight : {&flat.query, &flat.key, &flat.value}) {
    *weight = uniform_matrix(kChannels, kChannels, random) / std::sqrt(static_cast<double>(kChannels));
  }
  flat.weights = Vector::Ones(1);
  CausalHead hkt = flat;
  hkt.filters = {uniform_matrix(kTaps, kChannels, random)};
  hkt.weights = Vector::Constant(2, 0.5);
  const Matrix convolution = uniform_matrix(taps, kChannels, random);

  StrictResult result;
  Matrix permuted = x;  // the tokens before the last one in reverse order
  permuted.topRows(tokens - 1) = x.topRows(tokens - 1).colwise().reverse();
  auto change = [](const Vector& a, const Vector& b) { return (a - b).cwiseAbs().maxCoeff(); };
  result.flat_permuted = change(flat.last(x), flat.last(permuted));
  result.hkt_permuted = change(hkt.last(x), hkt.last(permuted));

  if (tokens <= taps) return result;
  Matrix changed = x;
  changed.row(tokens - 1 - taps).array() += 1;
  result.convolution_beyond =
      change(filtered(x, convolution, 1).row(tokens - 1), filtered(changed, convolution, 1).row(tokens - 1));
  result.hkt_beyond = change(hkt.last(x), hkt.last(changed));
  return result;
}

}  // namespace strata
