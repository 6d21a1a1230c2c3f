// Layer norm against torch's, on the CPU and on a GPU.
#include "torch/layer_norm.h"

#include <gtest/gtest.h>

#include "torch/run_on_device.h"

namespace strata {
namespace {

using torch::Tensor;

struct Norm {
  Tensor y, dx, dweight, dbias;
};

// The numbers are those of float32, whatever the type.
Norm run(int64_t rows, int64_t channels, torch::Device device, at::ScalarType type) {
  torch::manual_seed(9);
  auto place = [&](const Tensor& t) { return t.to(device, type).set_requires_grad(true); };
  const Tensor x = place(3 * torch::randn({rows, channels}) + 1), weight = place(torch::randn({channels})),
               bias = place(torch::randn({channels}));
  const Tensor y = layer_norm(x, weight, bias, 1e-5), dy = torch::randn({rows, channels}).to(device, type);
  const auto gradients = torch::autograd::grad({y}, {x, weight, bias}, {dy});
  return {y, gradients[0], gradients[1], gradients[2]};
}

void expect_close(const Norm& got, const Norm& want, double tolerance) {
  auto close = [&](const Tensor& a, const Tensor& b, const char* name) {
    const Tensor wide = b.to(torch::kCPU, torch::kDouble), error = a.to(torch::kCPU, torch::kDouble) - wide;
    EXPECT_LE(error.norm().item<double>(), tolerance * (1e-3 + wide.norm().item<double>())) << name;
  };
  close(got.y, want.y, "y"), close(got.dx, want.dx, "dx"), close(got.dweight, want.dweight, "dweight");
  close(got.dbias, want.dbias, "dbias");
}

TEST(LayerNorm, IsTorchsOnTheCpu) {
  const Tensor x = torch::randn({3, 5, 7}), weight = torch::randn({7}), bias = torch::randn({7});
  EXPECT_TRUE(torch::equal(layer_norm(x, weight, bias, 1e-3), torch::layer_norm(x, {7}, weight, bias, 1e-3)));
}

TEST(LayerNorm, OnAGpuAsTorchs) {
  if (!built_with_cuda() || !torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU here, or no CUDA kernels";
  for (const auto& [rows, channels] : std::vector<std::pair<int64_t, int64_t>>{{1, 2},
                                                                               {7, 31},
                                                                               {65, 32},
                                                                               {300, 64},
                                                                               {70000, 128},
                                                                               {9, 130},
                                                                               {33, 256},
                                                                               {5000, 500},
                                                                               {12, 512},
                                                                               {12, 513}}) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(channels));
    const Norm got = run(rows, channels, torch::kCUDA, torch::kFloat),
               again = run(rows, channels, torch::kCUDA, torch::kFloat);
    expect_close(got, run(rows, channels, torch::kCPU, torch::kDouble), 1e-5);
    if (channels > 512) continue;  // torch's
    EXPECT_TRUE(torch::equal(got.dx, again.dx) && torch::equal(got.dweight, again.dweight) &&
                torch::equal(got.dbias, again.dbias));
  }
}

}  // namespace
}  // namespace strata
