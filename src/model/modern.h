// The parts of a modern decoder block besides attention, as Llama and Qwen2 have them: RMSNorm and SwiGLU, without
// biases. With a causal attention that has rotary positions and, if wanted, fewer key heads, a block is
//   x'  = x + attention(norm_1(x))
//   x'' = x' + swiglu(norm_2(x'))
#pragma once

#include <torch/torch.h>

#include "strata/export.h"

namespace strata {

// y = x / sqrt(mean(x^2) + epsilon) * weight over the last dimension of x; computed in float32 at least.
STRATA_API torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double epsilon);

struct RmsNormOptions {
  RmsNormOptions(int64_t size) : size_(size) {}  // NOLINT(google-explicit-constructor): like torch's own options

  TORCH_ARG(int64_t, size);
  TORCH_ARG(double, epsilon) = 1e-6;
};

// Parameter: weight (size), ones at first.
class STRATA_API RmsNormImpl : public torch::nn::Cloneable<RmsNormImpl> {
 public:
  explicit RmsNormImpl(const RmsNormOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x);  // (.., size) to (.., size)

  RmsNormOptions options;
  torch::Tensor weight;
};
TORCH_MODULE(RmsNorm);

// y = W_narrow (silu(W_gate x) * W_widen x), with silu(z) = z / (1 + exp(-z)).
// Parameters: gate.weight, widen.weight (width, size), narrow.weight (size, width).
class STRATA_API SwiGluImpl : public torch::nn::Cloneable<SwiGluImpl> {
 public:
  SwiGluImpl(int64_t size, int64_t width);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x);  // (.., size) to (.., size)

  int64_t size, width;  // fixed once the module is made

 private:
  torch::nn::Linear gate_{nullptr}, widen_{nullptr}, narrow_{nullptr};
};
TORCH_MODULE(SwiGlu);

}  // namespace strata
