#include "inspect/inspect_gaussianity.h"

#include "inspect/hkt_run.h"
#include "theory/gaussianity.h"
#include "util/statistics.h"

namespace strata {
namespace {

constexpr int64_t kComponents = 16;  // largest number of components of Mardia's tests

}  // namespace

Json gaussianity_over(const std::vector<Matrix>& sequences) {
  Json json = Json::object();
  std::vector<double> skewness, skewness_p, kurtosis, kurtosis_p, z, expected, ratio;
  double rejected = 0;
  for (const Matrix& rows : sequences) {
    const GaussianityResult result = gaussianity_of(rows, kComponents);
    if (!result.problem.empty()) {
      if (!json.contains("problem")) json["problem"] = result.problem;
      continue;
    }
    if (skewness.empty()) {
      json["components"] = result.components;
      json["ceiling"] = result.ceiling;
      json["quantiles"] = result.quantiles;
      json["normal_quantiles"] = result.normal_quantiles;
    }
    skewness.push_back(result.skewness);
    skewness_p.push_back(result.skewness_p);
    kurtosis.push_back(result.kurtosis);
    kurtosis_p.push_back(result.kurtosis_p);
    z.push_back(result.kurtosis_z);
    expected.push_back(result.expected_kurtosis);
    ratio.push_back(result.kurtosis_ratio);
    rejected += result.skewness_p < 0.05 || result.kurtosis_p < 0.05;
  }
  json["tested"] = skewness.size();
  if (skewness.empty()) return json;
  json["skewness"] = median(skewness);
  json["skewness_p"] = median(skewness_p);
  json["kurtosis"] = median(kurtosis);
  json["kurtosis_p"] = median(kurtosis_p);
  json["expected_kurtosis"] = median(expected);
  json["kurtosis_ratio"] = median(ratio);
  json["kurtosis_z"] = median(z);
  json["rejected"] = rejected / static_cast<double>(skewness.size());
  return json;
}

Json track_gaussianity(HktAttentionImpl& layer, const std::vector<torch::Tensor>& inputs) {
  std::vector<HktRun> runs;
  for (const torch::Tensor& input : inputs) runs.emplace_back(layer, input);
  Json heads = Json::array();
  for (int64_t h = 0; h < layer.options.heads(); ++h) {
    std::vector<std::vector<Matrix>> rows(layer.options.levels());  // per level, per sequence
    for (const HktRun& run : runs) {
      const HktHead head = run.head(h);
      for (size_t l = 0; l < rows.size(); ++l) rows[l].push_back(score_coordinates(head.q[l], head.k[l]));
    }
    Json levels = Json::array();
    for (const std::vector<Matrix>& level : rows) {
      Json tests = gaussianity_over(level);
      tests.erase("quantiles");
      tests.erase("normal_quantiles");
      levels.push_back(std::move(tests));
    }
    heads.push_back(std::move(levels));
  }
  return heads;
}

}  // namespace strata
