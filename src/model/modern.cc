#include "model/modern.h"

namespace strata {

using torch::Tensor;

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0), "x: expected shape (.., ",
              weight.numel(), "), got ", x.sizes());
  const Tensor wide = x.to(x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
  const Tensor scale = torch::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + epsilon);
  return (wide * scale).to(x.scalar_type()) * weight;
}

RmsNormImpl::RmsNormImpl(const RmsNormOptions& options_) : options(options_) {
  TORCH_CHECK(options.size() >= 1, "size: expected 1 or more channels, got ", options.size());
  TORCH_CHECK(options.epsilon() >= 0 && options.epsilon() <= 1, "epsilon: expected a number from 0 to 1, got ",
              options.epsilon());
  reset();
}

void RmsNormImpl::reset() { weight = register_parameter("weight", torch::ones({options.size()})); }

void RmsNormImpl::pretty_print(std::ostream& stream) const {
  stream << "strata::RmsNorm(" << options.size() << ", epsilon=" << options.epsilon() << ")";
}

Tensor RmsNormImpl::forward(const Tensor& x) { return rms_norm(x, weight, options.epsilon()); }

SwiGluImpl::SwiGluImpl(int64_t size_, int64_t width_) : size(size_), width(width_) {
  TORCH_CHECK(size >= 1 && width >= 1, "size, width: expected 1 or more channels, got ", size, " and ", width);
  reset();
}

void SwiGluImpl::reset() {
  auto linear = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
  };
  gate_ = linear("gate", size, width);
  widen_ = linear("widen", size, width);
  narrow_ = linear("narrow", width, size);
}

void SwiGluImpl::pretty_print(std::ostream& stream) const {
  stream << "strata::SwiGlu(" << size << ", width=" << width << ")";
}

Tensor SwiGluImpl::forward(const Tensor& x) { return narrow_(torch::silu(gate_(x)) * widen_(x)); }

}  // namespace strata
