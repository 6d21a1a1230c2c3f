// AdamW over lists against torch's own, parameter by parameter.
#include "train/adamw.h"

#include <gtest/gtest.h>

namespace strata::test {
namespace {

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(1);
    matrix = register_parameter("matrix", torch::randn({3, 4}));
    bias = register_parameter("bias", torch::randn({4}));
    unused = register_parameter("unused", torch::randn({2}));
  }
  torch::Tensor loss(int step) const {
    torch::manual_seed(100 + step);
    return (torch::matmul(torch::randn({5, 3}), matrix) + bias).square().sum();
  }
  torch::Tensor matrix, bias, unused;
};

TEST(AdamW, EqualsTorchsOwn) {
  Net ours, theirs;
  const torch::Tensor unused = ours.unused.detach().clone();
  AdamW optimizer(ours, 0.1);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  auto options = [](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(1e-2).weight_decay(decay));
  };
  groups.emplace_back(std::vector<torch::Tensor>{theirs.matrix}, options(0.1));
  groups.emplace_back(std::vector<torch::Tensor>{theirs.bias, theirs.unused}, options(0.0));
  torch::optim::AdamW reference(groups, torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    ours.loss(step).backward();
    optimizer.clip(1.0);
    optimizer.step(1e-2);
    reference.zero_grad();
    theirs.loss(step).backward();
    torch::nn::utils::clip_grad_norm_(std::vector<torch::Tensor>{theirs.matrix, theirs.bias}, 1.0);
    reference.step();
    ASSERT_TRUE(torch::allclose(ours.matrix, theirs.matrix, 1e-6, 1e-7)) << step;
    ASSERT_TRUE(torch::allclose(ours.bias, theirs.bias, 1e-6, 1e-7)) << step;
  }
  EXPECT_FALSE(torch::allclose(ours.matrix, Net().matrix));
  EXPECT_TRUE(torch::equal(ours.unused, unused)) << "without a gradient nothing moves";
}

TEST(AdamW, SmallGradientsAreNotClipped) {
  Net net;
  AdamW optimizer(net, 0.0);
  (1e-3 * net.matrix).sum().backward();
  optimizer.clip(1.0);
  EXPECT_TRUE(torch::allclose(net.matrix.grad(), torch::full({3, 4}, 1e-3)));
}

}  // namespace
}  // namespace strata::test
