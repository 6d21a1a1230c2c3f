#include "train/window.h"

#include <algorithm>

namespace strata {

Window::Window(torch::Device device)
    : loss_(torch::zeros({}, torch::TensorOptions(torch::kDouble).device(device))), correct_(loss_.clone()) {}

void Window::add(const Loss& loss, int64_t tokens) {
  loss_ += loss.mean.detach().to(torch::kDouble) * loss.counted;
  correct_ += loss.correct;
  counted_ += loss.counted;
  tokens_ += tokens;
}

void Window::restart(double train_seconds) {
  loss_.zero_();
  correct_.zero_();
  counted_ = tokens_ = 0;
  start_seconds_ = train_seconds;
}

double Window::mean(const torch::Tensor& sum) const {
  return sum.item<double>() / static_cast<double>(std::max<int64_t>(counted_, 1));
}
double Window::loss() const { return mean(loss_); }
double Window::accuracy() const { return mean(correct_); }

double Window::tokens_per_second(double train_seconds) const {
  return static_cast<double>(tokens_) / std::max(1e-9, train_seconds - start_seconds_);
}

RunState::Sums Window::save() const {
  return {loss_.item<double>(), correct_.item<double>(), counted_, tokens_, start_seconds_};
}

void Window::restore(const RunState::Sums& saved) {
  loss_.fill_(saved.loss);
  correct_.fill_(saved.correct);
  counted_ = saved.counted;
  tokens_ = saved.tokens;
  start_seconds_ = saved.start_seconds;
}

}  // namespace strata
