#include "inject/linear_head.h"

#include <limits>

namespace strata {
namespace {

using torch::Tensor;

LinearHead fit(const Tensor& features, const Tensor& labels, int64_t classes, double l2) {
  const auto numbers = torch::TensorOptions(torch::kDouble);
  LinearHead head;
  head.l2 = l2;
  head.mean = features.mean(0);
  head.deviation = (features - head.mean).square().mean(0).sqrt().clamp_min(1e-8);
  head.weight = torch::zeros({features.size(1), classes}, numbers).requires_grad_();
  head.bias = torch::zeros({classes}, numbers).requires_grad_();
  torch::optim::LBFGS optimizer({head.weight, head.bias},
                                torch::optim::LBFGSOptions(1.0).max_iter(100).line_search_fn("strong_wolfe"));
  optimizer.step([&] {
    optimizer.zero_grad();
    const Tensor loss = torch::nn::functional::cross_entropy(head(features), labels) + l2 * head.weight.square().sum();
    loss.backward();
    return loss;
  });
  head.weight = head.weight.detach();
  head.bias = head.bias.detach();
  return head;
}

}  // namespace

Tensor LinearHead::operator()(const Tensor& features) const {
  return torch::matmul((features.to(torch::kDouble) - mean) / deviation, weight) + bias;
}

LinearHead fit_linear_head(const Tensor& features, const Tensor& labels, int64_t classes) {
  const torch::AutoGradMode with_gradients(true);
  const Tensor x = features.detach().to(torch::kDouble);
  constexpr int64_t kFolds = 5;
  const Tensor held_out = torch::arange(x.size(0)) % kFolds == kFolds - 1;
  double l2 = 1e-2, least = std::numeric_limits<double>::infinity();
  if (held_out.any().item<bool>()) {
    for (const double candidate : {1e-4, 1e-3, 1e-2, 1e-1, 1.0}) {
      const LinearHead head = fit(x.index({~held_out}), labels.index({~held_out}), classes, candidate);
      const double loss =
          torch::nn::functional::cross_entropy(head(x.index({held_out})), labels.index({held_out})).item<double>();
      if (loss < least) {
        least = loss;
        l2 = candidate;
      }
    }
  }
  return fit(x, labels, classes, l2);
}

double share_of(const Tensor& rows) { return rows.to(torch::kDouble).mean().item<double>(); }

}  // namespace strata
