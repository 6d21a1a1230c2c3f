#include "inspect/inspect_hkt.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "theory/decay.h"
#include "theory/error.h"
#include "theory/gaussianity.h"
#include "theory/psd.h"
#include "theory/symmetry.h"
#include "train/statistics.h"

namespace strata {
namespace {

using torch::Tensor;

constexpr int64_t kComponents = 16;  // of Mardia's tests, at most

Matrix to_matrix(const Tensor& t) {
  const Tensor dense = t.detach().to(torch::kDouble).contiguous();
  return Eigen::Map<const Matrix>(dense.data_ptr<double>(), dense.size(0), dense.size(1));
}

Json numbers(const Vector& values) { return std::vector<double>(values.begin(), values.end()); }

// Everything one head computes on one sequence.
struct Sequence {
  std::vector<Matrix> q, k;    // per level, (T_l, d)
  std::vector<Matrix> states;  // per level, (T_l, model)
  LevelScores scores;
};

Json psd_json(const PsdResult& r) {
  return {{"holds", r.holds},
          {"smallest", r.smallest},
          {"negative_count", r.negative_count},
          {"negative_mass", r.negative_mass},
          {"eigenvalues", numbers(r.eigenvalues)}};
}

// The features whose inner products are S: [a_l q^(l)_{i >> l}] and [k^(l)_{j >> l}], one column per token.
std::pair<Matrix, Matrix> features(const Sequence& s) {
  const Eigen::Index T = s.scores.tokens(), d = s.q[0].cols();
  const auto L = static_cast<Eigen::Index>(s.q.size());
  Matrix q(L * d, T), k(L * d, T);
  for (Eigen::Index l = 0; l < L; ++l) {
    for (Eigen::Index t = 0; t < T; ++t) {
      q.block(l * d, t, d, 1) = s.scores.weights(l) * s.q[l].row(t >> l).transpose();
      k.block(l * d, t, d, 1) = s.k[l].row(t >> l).transpose();
    }
  }
  return {q, k};
}

Json inspect_psd(const std::vector<Matrix>& query, const std::vector<Matrix>& key,
                 const std::vector<Sequence>& sequences) {
  Json json = {{"levels", Json::array()}};
  bool holds = true;
  for (size_t l = 0; l < query.size(); ++l) {
    const PsdResult result = psd_of_projections(query[l], key[l]);
    holds = holds && result.holds;
    json["levels"].push_back(psd_json(result));
  }
  json["sufficient_condition"] = holds;
  std::vector<double> negative;
  for (const Sequence& s : sequences) {
    const auto [q, k] = features(s);
    const PsdResult scores = psd_of_projections(q, k);
    if (negative.empty()) json["scores"]["eigenvalues"] = numbers(scores.eigenvalues);  // of the first sequence
    negative.push_back(scores.negative_mass);
  }
  json["scores"]["negative_mass"] = median(negative);
  return json;
}

Json inspect_symmetry(const std::vector<Matrix>& query, const std::vector<Matrix>& key,
                      const std::vector<Sequence>& sequences) {
  Json levels = Json::array();
  for (size_t l = 0; l < query.size(); ++l) {
    std::vector<double> shares;
    double orthogonality = 0, upsampling = 0, projection = 0;
    for (const Sequence& s : sequences) {
      const SymmetryResult result = symmetry_of(s.scores.levels[l]);
      shares.push_back(result.directional_share);
      orthogonality = std::max(orthogonality, result.orthogonality);
    }
    const Sequence& first = sequences.front();
    upsampling = upsampling_commutes(first.scores.levels[l], static_cast<int>(l), first.scores.tokens());
    projection = projection_commutes(first.states[l], query[l].transpose() * key[l]);
    levels.push_back({{"directional_share", median(shares)},
                      {"orthogonality", orthogonality},
                      {"upsampling", upsampling},
                      {"projection", projection}});
  }
  return levels;
}

Json inspect_error(const std::vector<Sequence>& sequences) {
  ErrorResult sum;
  for (const Sequence& s : sequences) {
    const ErrorResult one = error_of(s.scores);
    for (double ErrorResult::*term : {&ErrorResult::kl, &ErrorResult::resolution, &ErrorResult::filter,
                                      &ErrorResult::correction, &ErrorResult::third, &ErrorResult::fourth}) {
      sum.*term += one.*term / static_cast<double>(sequences.size());
    }
    sum.residual = std::max(sum.residual, one.residual);
    sum.range = std::max(sum.range, one.range);
  }
  return {
      {"kl", sum.kl},       {"resolution", sum.resolution}, {"filter", sum.filter},     {"correction", sum.correction},
      {"third", sum.third}, {"fourth", sum.fourth},         {"residual", sum.residual}, {"range", sum.range}};
}

Json inspect_decay(const std::vector<Sequence>& sequences) {
  std::vector<DecayStep> sum;
  for (const Sequence& s : sequences) {
    const std::vector<DecayStep> steps = decay_of(s.scores);
    sum.resize(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      sum[i].weight = steps[i].weight;
      for (double DecayStep::*term : {&DecayStep::kl, &DecayStep::reverse_kl, &DecayStep::bound}) {
        sum[i].*term += steps[i].*term / static_cast<double>(sequences.size());
      }
      sum[i].worst = std::max(sum[i].worst, steps[i].worst);
    }
  }
  Json json = Json::array();
  for (size_t i = 0; i < sum.size(); ++i) {
    json.push_back({{"levels", i + 1},
                    {"weight", sum[i].weight},
                    {"kl", sum[i].kl},
                    {"reverse_kl", sum[i].reverse_kl},
                    {"bound", sum[i].bound},
                    {"worst", sum[i].worst}});
  }
  return json;
}

// Sequences are tested one by one, never pooled: medians over them, and how many are rejected.
template <class Rows>
Json inspect_gaussianity(const std::vector<Sequence>& sequences, const Rows& rows) {
  Json json;
  std::vector<double> skewness, kurtosis, z, expected;
  double rejected = 0;
  for (const Sequence& s : sequences) {
    const GaussianityResult result = gaussianity_of(rows(s), kComponents);
    if (!result.problem.empty()) {
      if (!json.contains("problem")) json["problem"] = result.problem;
      continue;
    }
    if (skewness.empty()) {
      json["components"] = result.components;
      json["ceiling"] = result.ceiling;
      json["quantiles"] = result.quantiles;
    }
    skewness.push_back(result.skewness);
    kurtosis.push_back(result.kurtosis);
    z.push_back(result.kurtosis_z);
    const auto p = static_cast<double>(result.components), n = static_cast<double>(result.rows);
    expected.push_back(p * (p + 2) * (n - 1) / (n + 1));
    rejected += result.skewness_p < 0.05 || result.kurtosis_p < 0.05;
  }
  json["tested"] = skewness.size();
  if (skewness.empty()) return json;
  json["skewness"] = median(skewness);
  json["kurtosis"] = median(kurtosis);
  json["expected_kurtosis"] = median(expected);
  json["kurtosis_z"] = median(z);
  json["rejected"] = rejected / static_cast<double>(skewness.size());
  return json;
}

}  // namespace

Json inspect_hkt_layer(HktAttentionImpl& layer, const std::vector<Tensor>& inputs) {
  torch::NoGradGuard no_grad;
  const int64_t heads = layer.options.heads(), levels = layer.options.levels(), d = layer.head_size();
  const int64_t key_heads = layer.options.key_heads() == 0 ? heads : layer.options.key_heads();
  const Tensor weights = layer.level_weights();
  // W_q and W_k of each level, (H, d, model), as the images of the unit vectors: the projections of sequence models
  // have no biases, and this is right for keys made from queries as well.
  std::vector<Tensor> query(levels), key(levels);
  const Tensor units = torch::eye(layer.options.model_size()).unsqueeze(0);
  for (int64_t l = 0; l < levels; ++l) {
    const auto [q, k] = layer.project(units, l);
    query[l] = q[0].transpose(-1, -2);
    key[l] = k[0].transpose(-1, -2);
  }
  std::vector<std::vector<Tensor>> states, q, k;
  for (const Tensor& x : inputs) {
    states.push_back(layer.pyramid(x.unsqueeze(0)));
    q.emplace_back();
    k.emplace_back();
    for (int64_t l = 0; l < levels; ++l) {
      auto [queries, keys] = layer.project(states.back()[l], l);
      q.back().push_back(queries[0]);
      k.back().push_back(keys[0]);
    }
  }
  auto inspect_head = [&](int64_t h) -> Json {
    const int64_t key_head = h / (heads / key_heads);
    std::vector<Matrix> W_q, W_k;
    for (int64_t l = 0; l < levels; ++l) {
      W_q.push_back(to_matrix(query[l][h]));
      W_k.push_back(to_matrix(key[l][key_head]));
    }
    std::vector<Sequence> sequences;
    for (size_t n = 0; n < inputs.size(); ++n) {
      Sequence s;
      s.scores.causal = layer.options.causal();
      s.scores.weights = to_matrix(weights[h].unsqueeze(1)).col(0);
      for (int64_t l = 0; l < levels; ++l) {
        s.states.push_back(to_matrix(states[n][l][0]));
        s.q.push_back(to_matrix(q[n][l][h]));
        s.k.push_back(to_matrix(k[n][l][key_head]));
        s.scores.levels.push_back(s.q.back() * s.k.back().transpose() / std::sqrt(static_cast<double>(d)));
      }
      sequences.push_back(std::move(s));
    }
    Json gaussianity = {{"scores", Json::array()}, {"states", Json::array()}};
    for (int64_t l = 0; l < levels; ++l) {
      gaussianity["scores"].push_back(
          inspect_gaussianity(sequences, [l](const Sequence& s) { return score_coordinates(s.q[l], s.k[l]); }));
      if (h == 0)
        gaussianity["states"].push_back(inspect_gaussianity(sequences, [l](const Sequence& s) { return s.states[l]; }));
    }
    if (h > 0) gaussianity.erase("states");  // the heads share them
    return {{"head", h},
            {"weights", numbers(sequences.front().scores.weights)},
            {"psd", inspect_psd(W_q, W_k, sequences)},
            {"symmetry", inspect_symmetry(W_q, W_k, sequences)},
            {"error", inspect_error(sequences)},
            {"decay", inspect_decay(sequences)},
            {"gaussianity", gaussianity}};
  };
  std::vector<Json> results(heads);
  std::exception_ptr failure;  // none may leave the parallel region
#pragma omp parallel for schedule(dynamic)
  for (int64_t h = 0; h < heads; ++h) {
    try {
      results[h] = inspect_head(h);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  return results;
}

}  // namespace strata
