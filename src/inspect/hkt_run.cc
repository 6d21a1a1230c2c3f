#include "inspect/hkt_run.h"

#include <cmath>

namespace strata {

using torch::Tensor;

Matrix to_matrix(const Tensor& t) {
  const Tensor dense = t.detach().to(torch::kCPU, torch::kDouble).contiguous();
  return Eigen::Map<const Matrix>(dense.data_ptr<double>(), dense.size(0), dense.size(1));
}

HktRun::HktRun(HktAttentionImpl& layer, const Tensor& input)
    : causal_(layer.options.causal()), weights_(layer.level_weights()) {
  torch::NoGradGuard no_grad;
  for (const Tensor& states : layer.pyramid(input.unsqueeze(0))) {
    const auto [q, k] = layer.project(states, static_cast<int64_t>(states_.size()));
    states_.push_back(to_matrix(states[0]));
    q_.push_back(q[0]);
    k_.push_back(k[0]);
  }
  queries_per_key_ = q_[0].size(0) / k_[0].size(0);
}

HktHead HktRun::head(int64_t h) const {
  HktHead head;
  head.scores.causal = causal_;
  head.scores.weights = to_matrix(weights_[h].unsqueeze(1)).col(0);
  for (size_t l = 0; l < q_.size(); ++l) {
    head.q.push_back(to_matrix(q_[l][h]));
    head.k.push_back(to_matrix(k_[l][h / queries_per_key_]));
    const auto d = static_cast<double>(head.q[l].cols());
    head.scores.levels.push_back(head.q[l] * head.k[l].transpose() / std::sqrt(d));
  }
  return head;
}

}  // namespace strata
