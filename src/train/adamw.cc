#include "train/adamw.h"

#include <cmath>
#include <map>

#include "torch/compat.h"

namespace strata {

using torch::Tensor;

AdamW::AdamW(const torch::nn::Module& model, double weight_decay) {
  for (const auto& item : model.named_parameters())
    slots_.push_back({item.key(), item.value(), item.value().dim() >= 2 ? weight_decay : 0.0, 0, {}, {}});
}

void AdamW::zero_grad() {
  for (Slot& slot : slots_) slot.parameter.mutable_grad() = Tensor();
}

void AdamW::clip(double largest_norm) {
  torch::NoGradGuard no_grad;
  constexpr double kTiny = 1e-6;
  std::vector<Tensor> gradients;
  for (const Slot& slot : slots_) {
    if (slot.parameter.grad().defined()) gradients.push_back(slot.parameter.grad());
  }
  if (gradients.empty()) return;
  const Tensor norm = torch::stack(at::_foreach_norm(gradients, 2)).norm(2);
  multiply_all(gradients, (largest_norm / (norm + kTiny)).clamp_max(1.0));
}

void AdamW::step(double learning_rate) {
  torch::NoGradGuard no_grad;
  constexpr double kMeanDecay = 0.9, kSquareDecay = 0.999, kTiny = 1e-8;
  struct Group {
    std::vector<Tensor> parameters, gradients, means, squares;
  };
  std::map<std::pair<double, int64_t>, Group> groups;  // by decay and number of steps
  for (Slot& slot : slots_) {
    const Tensor gradient = slot.parameter.grad();
    if (!gradient.defined()) continue;
    if (!slot.mean.defined()) {
      slot.mean = torch::zeros_like(slot.parameter);
      slot.square = torch::zeros_like(slot.parameter);
    }
    Group& group = groups[{slot.decay, ++slot.steps}];
    group.parameters.push_back(slot.parameter);
    group.gradients.push_back(gradient);
    group.means.push_back(slot.mean);
    group.squares.push_back(slot.square);
  }
  for (auto& [key, group] : groups) {
    const auto [decay, steps] = key;
    const double mean_correction = 1 - std::pow(kMeanDecay, steps),
                 square_correction = 1 - std::pow(kSquareDecay, steps);
    if (decay != 0) at::_foreach_mul_(group.parameters, 1 - learning_rate * decay);
    at::_foreach_mul_(group.means, kMeanDecay);
    at::_foreach_add_(group.means, group.gradients, 1 - kMeanDecay);
    at::_foreach_mul_(group.squares, kSquareDecay);
    at::_foreach_addcmul_(group.squares, group.gradients, group.gradients, 1 - kSquareDecay);
    std::vector<Tensor> divisors = at::_foreach_sqrt(group.squares);
    at::_foreach_div_(divisors, std::sqrt(square_correction));
    at::_foreach_add_(divisors, kTiny);
    at::_foreach_addcdiv_(group.parameters, group.means, divisors, -learning_rate / mean_correction);
  }
}

}  // namespace strata
