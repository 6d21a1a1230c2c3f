#include "train/adamw.h"

#include <cmath>
#include <map>

#include "torch/compat.h"

namespace strata {

using torch::Tensor;

AdamW::AdamW(const torch::nn::Module& model, double weight_decay) {
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) continue;  // fixed
    slots_.push_back({item.key(), item.value(), item.value().dim() >= 2 ? weight_decay : 0.0, 0, {}, {}, {}, false});
  }
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

namespace {

constexpr double kMeanDecay = 0.9, kSquareDecay = 0.999, kTiny = 1e-8;

}  // namespace

void AdamW::step(double learning_rate) {
  set_learning_rate(learning_rate);
  update();
}

void AdamW::set_learning_rate(double learning_rate) {
  learning_rate_ = learning_rate;
  if (!kHasFusedAdamW || slots_.empty() || !slots_[0].parameter.is_cuda()) return;
  if (!rate_on_device_.defined())
    rate_on_device_ = torch::zeros({}, slots_[0].parameter.options().dtype(torch::kFloat).requires_grad(false));
  rate_on_device_.fill_(learning_rate);
}

void AdamW::update() {
  torch::NoGradGuard no_grad;
  std::map<std::pair<double, int64_t>, Group> groups;
  for (Slot& slot : slots_) {
    const Tensor gradient = slot.parameter.grad();
    if (!gradient.defined()) continue;
    if (slot.foreign) {
      ++slot.steps;
      continue;
    }
    if (!slot.mean.defined()) {
      slot.mean = torch::zeros_like(slot.parameter);
      slot.square = torch::zeros_like(slot.parameter);
    }
    Group& group = groups[{slot.decay, ++slot.steps}];
    group.parameters.push_back(slot.parameter);
    group.gradients.push_back(gradient);
    group.means.push_back(slot.mean);
    group.squares.push_back(slot.square);
    if (!rate_on_device_.defined()) continue;
    if (!slot.steps_on_device.defined())
      slot.steps_on_device = torch::full({}, static_cast<double>(slot.steps - 1), rate_on_device_.options());
    group.steps_on_device.push_back(slot.steps_on_device);
  }
  for (auto& [key, group] : groups) {
    if (rate_on_device_.defined()) {
      at::_foreach_add_(group.steps_on_device, 1);
      fused_adamw(group.parameters, group.gradients, group.means, group.squares, group.steps_on_device, rate_on_device_,
                  kMeanDecay, kSquareDecay, key.first, kTiny);
    } else {
      update_on_cpu(key.first, key.second, group);
    }
  }
}

void AdamW::update_on_cpu(double decay, int64_t steps, Group& group) const {
  const double mean_correction = 1 - std::pow(kMeanDecay, steps), square_correction = 1 - std::pow(kSquareDecay, steps);
  if (decay != 0) at::_foreach_mul_(group.parameters, 1 - learning_rate_ * decay);
  at::_foreach_mul_(group.means, kMeanDecay);
  at::_foreach_add_(group.means, group.gradients, 1 - kMeanDecay);
  at::_foreach_mul_(group.squares, kSquareDecay);
  at::_foreach_addcmul_(group.squares, group.gradients, group.gradients, 1 - kSquareDecay);
  std::vector<Tensor> divisors = at::_foreach_sqrt(group.squares);
  at::_foreach_div_(divisors, std::sqrt(square_correction));
  at::_foreach_add_(divisors, kTiny);
  at::_foreach_addcdiv_(group.parameters, group.means, divisors, -learning_rate_ / mean_correction);
}

void AdamW::replayed() {
  for (Slot& slot : slots_) slot.steps += slot.steps_on_device.defined() ? 1 : 0;
}

}  // namespace strata
