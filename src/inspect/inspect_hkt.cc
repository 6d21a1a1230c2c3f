#include "inspect/inspect_hkt.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "inspect/hkt_run.h"
#include "inspect/inspect_gaussianity.h"
#include "theory/decay.h"
#include "theory/error.h"
#include "theory/gaussianity.h"
#include "theory/psd.h"
#include "theory/symmetry.h"
#include "util/statistics.h"

namespace strata {
namespace {

using torch::Tensor;

Json numbers(const Vector& values) { return std::vector<double>(values.begin(), values.end()); }

Json psd_json(const PsdResult& r) {
  return {{"holds", r.holds},
          {"smallest", r.smallest},
          {"negative_count", r.negative_count},
          {"negative_mass", r.negative_mass},
          {"eigenvalues", numbers(r.eigenvalues)}};
}

// The features whose inner products are S: [a_l q^(l)_{i >> l}] and [k^(l)_{j >> l}], one column per token.
std::pair<Matrix, Matrix> features(const HktHead& s) {
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

// The projections of each level, (d, model); none where queries and keys are no linear maps of the states.
struct Projections {
  std::vector<Matrix> query, key;
  bool none() const { return query.empty(); }
};
constexpr const char* kRotary = "does not apply: rotary positions";

// The condition on sym(M_l), and sym(S) on the sequences.
Json inspect_psd(const Projections& of, const std::vector<HktHead>& sequences) {
  Json json = Json::object();
  if (of.none()) {
    json["problem"] = kRotary;
  } else {
    bool holds = true;
    for (size_t l = 0; l < of.query.size(); ++l) {
      const PsdResult result = psd_of_projections(of.query[l], of.key[l]);
      holds = holds && result.holds;
      json["levels"].push_back(psd_json(result));
      json["levels"].back()["beyond_keys"] = queries_beyond_keys(of.query[l], of.key[l]);
    }
    json["sufficient_condition"] = holds;
  }
  std::vector<double> negative;
  for (const HktHead& s : sequences) {
    const auto [q, k] = features(s);
    const PsdResult scores = psd_of_projections(q, k);
    if (negative.empty()) json["scores"]["eigenvalues"] = numbers(scores.eigenvalues);  // of the first sequence
    negative.push_back(scores.negative_mass);
  }
  json["scores"]["negative_mass"] = median(negative);
  return json;
}

// The filter of each level. Without one in front, level 0 is its input: one tap, the identity.
std::vector<StackedFilter> filters_of(const HktAttentionImpl& layer) {
  const int64_t channels = layer.options.model_size();
  const auto parameters = layer.named_parameters();
  std::vector<StackedFilter> filters;
  for (int64_t l = 0; l < layer.options.levels(); ++l) {
    const int stride = l == 0 ? 1 : 2;
    const Tensor* weight = parameters.find("filter_" + std::to_string(l));
    filters.push_back(weight == nullptr ? StackedFilter{stride, Matrix::Identity(channels, channels)}
                                        : stacked_filter(to_matrix(weight->reshape({-1, channels})),
                                                         layer.options.dense_filters(), stride));
  }
  return filters;
}

// input: of the first sequence, (tokens, model).
Json inspect_symmetry(const Projections& of, const std::vector<StackedFilter>& filters, const Matrix& input,
                      const HktRun& first_run, const std::vector<HktHead>& sequences) {
  Json levels = Json::array();
  for (size_t l = 0; l < filters.size(); ++l) {
    std::vector<double> shares;
    double orthogonality = 0;
    for (const HktHead& s : sequences) {
      const SymmetryResult result = symmetry_of(s.scores.levels[l]);
      shares.push_back(result.directional_share);
      orthogonality = std::max(orthogonality, result.orthogonality);
    }
    const HktHead& first = sequences.front();
    levels.push_back(
        {{"directional_share", median(shares)},
         {"orthogonality", orthogonality},
         {"upsampling", upsampling_commutes(first.scores.levels[l], static_cast<int>(l), first.scores.tokens())}});
    if (of.none()) {
      levels.back()["problem"] = kRotary;  // the identities with M
      continue;
    }
    const Matrix M = of.query[l].transpose() * of.key[l];
    const Matrix& below = l == 0 ? input : first_run.states()[l - 1];
    levels.back()["projection"] = projection_commutes(first_run.states()[l], M);
    levels.back()["filters"] = filters_commute(below, first_run.states()[l], filters[l], M);
  }
  return levels;
}

Json inspect_error(const std::vector<HktHead>& sequences) {
  ErrorResult sum;
  for (const HktHead& s : sequences) {
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

Json inspect_decay(const std::vector<HktHead>& sequences) {
  std::vector<DecayStep> sum;
  for (const HktHead& s : sequences) {
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

// Why a head cannot be inspected; empty when it can.
std::string problem_of(const HktHead& head) {
  if (!head.scores.weights.allFinite()) return "its level weights are not finite";
  for (size_t l = 0; l < head.q.size(); ++l) {
    if (!head.q[l].allFinite()) return fmt::format("its queries of level {} are not finite", l);
    if (!head.k[l].allFinite()) return fmt::format("its keys of level {} are not finite", l);
  }
  return {};
}

}  // namespace

Json inspect_hkt_layer(HktAttentionImpl& layer, const std::vector<Tensor>& inputs) {
  torch::NoGradGuard no_grad;
  const int64_t heads = layer.options.heads(), levels = layer.options.levels();
  // W_q and W_k of each level, (H, d, model), as the images of the unit vectors: the projections of sequence models
  // have no biases, and this is right for keys made from queries as well. Rotary positions rotate every row by an angle
  // of its own, so that no M stands for all pairs of rows.
  std::vector<Tensor> query, key;
  const Tensor units = torch::eye(layer.options.model_size()).unsqueeze(0);
  for (int64_t l = 0; l < levels && layer.options.rotary() == 0; ++l) {
    const auto [q, k] = layer.project(units, l);
    query.push_back(q[0].transpose(-1, -2));
    key.push_back(k[0].transpose(-1, -2));
  }
  std::vector<HktRun> runs;
  for (const Tensor& x : inputs) runs.emplace_back(layer, x);
  const std::vector<StackedFilter> filters = filters_of(layer);
  const Matrix first_input = to_matrix(inputs.front());

  auto inspect_head = [&](int64_t h) -> Json {
    Projections projections;
    for (size_t l = 0; l < query.size(); ++l) {
      projections.query.push_back(to_matrix(query[l][h]));
      projections.key.push_back(to_matrix(key[l][h * key[l].size(0) / heads]));
    }
    std::vector<HktHead> sequences;
    for (const HktRun& run : runs) {
      sequences.push_back(run.head(h));
      if (const std::string problem = problem_of(sequences.back()); !problem.empty())
        return {{"head", h}, {"problem", problem}};
    }
    Json gaussianity = {{"scores", Json::array()}};
    if (h == 0) gaussianity["states"] = Json::array();  // the heads share them
    for (int64_t l = 0; l < levels; ++l) {
      std::vector<Matrix> scores, states;
      for (const HktHead& s : sequences) scores.push_back(score_coordinates(s.q[l], s.k[l]));
      gaussianity["scores"].push_back(gaussianity_over(scores));
      if (h > 0) continue;
      for (const HktRun& run : runs) states.push_back(run.states()[l]);
      gaussianity["states"].push_back(gaussianity_over(states));
    }
    return {{"head", h},
            {"weights", numbers(sequences.front().scores.weights)},
            {"psd", inspect_psd(projections, sequences)},
            {"symmetry", inspect_symmetry(projections, filters, first_input, runs.front(), sequences)},
            {"error", inspect_error(sequences)},
            {"decay", inspect_decay(sequences)},
            {"gaussianity", gaussianity}};
  };
  std::vector<Json> results(heads);
  std::exception_ptr failure;  // an exception must not leave the parallel region
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
