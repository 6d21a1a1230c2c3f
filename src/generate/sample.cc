#include "generate/sample.h"

#include <algorithm>
#include <cmath>

namespace strata {

int64_t sample_token(const std::vector<double>& logits, const SampleOptions& options, Random& random) {
  std::vector<int64_t> tokens;
  for (size_t token = 0; token < logits.size(); ++token) {
    if (std::isfinite(logits[token])) tokens.push_back(static_cast<int64_t>(token));
  }
  if (tokens.empty()) return -1;
  auto likelier = [&](int64_t a, int64_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
  if (options.temperature == 0) return *std::min_element(tokens.begin(), tokens.end(), likelier);
  if (options.top_k > 0 || options.top_p < 1) std::sort(tokens.begin(), tokens.end(), likelier);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(tokens.size())) tokens.resize(options.top_k);
  double largest = logits[tokens[0]], sum = 0;
  for (const int64_t token : tokens) largest = std::max(largest, logits[token]);
  std::vector<double> weights;
  for (const int64_t token : tokens) {
    weights.push_back(std::exp((logits[token] - largest) / options.temperature));
    sum += weights.back();
  }
  if (options.top_p < 1) {
    double kept = 0;
    size_t count = 0;
    while (count < weights.size() && (count == 0 || kept < options.top_p * sum)) kept += weights[count++];
    weights.resize(count);
    sum = kept;
  }
  double left = random.unit() * sum;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return tokens[i];
  }
  return tokens[weights.size() - 1];
}

}  // namespace strata
