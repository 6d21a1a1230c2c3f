// The HSA operators in C++; the Python tests go deeper and compare the two.
#include "torch/hsa_op.h"

#include <gtest/gtest.h>

#include "base/check_count.h"
#include "torch/balanced.h"
#include "torch/expect_error.h"

namespace strata {
namespace {

using torch::Tensor;

TEST(HsaOp, ArgumentsAreCheckedOnce) {
  const Tensor q = torch::randn({1, 2, 20, 4}).set_requires_grad(true);
  auto checks = [](const auto& call) {
    const int64_t before = argument_checks();
    call();
    return argument_checks() - before;
  };
  Tensor tree_out, stream_out;
  EXPECT_EQ(checks([&] { tree_out = std::get<0>(hsa_attention(q, q, q, {balanced(20, 4)})); }), 2);
  EXPECT_EQ(checks([&] { torch::autograd::grad({tree_out.sum()}, {q}); }), 2);
  EXPECT_EQ(checks([&] { stream_out = std::get<0>(hsa_stream_attention(q, q, q, {})); }), 2);
  EXPECT_EQ(checks([&] { torch::autograd::grad({stream_out.sum()}, {q}); }), 2);
}

// The tree form has its shapes from Python (python/strata/_register.py), since its trees stay on the CPU.
TEST(HsaStreamOp, MetaKernelsGiveTheShapes) {
  const auto meta = torch::TensorOptions(torch::kMeta);
  const Tensor q = torch::empty({2, 3, 9, 4}, meta).set_requires_grad(true), v = torch::empty({2, 3, 9, 5}, meta);
  const auto [out, lse] = hsa_stream_attention(q, q, v);
  EXPECT_EQ(out.sizes(), v.sizes());
  EXPECT_EQ(lse.sizes(), (std::vector<int64_t>{2, 3, 9}));
  EXPECT_EQ(torch::autograd::grad({out.sum()}, {q})[0].sizes(), q.sizes());
}

TEST(HsaOp, TheChosenTreeHasTheSmallestKLGap) {
  torch::manual_seed(4);
  const Tensor q = torch::randn({1, 2, 30, 4}, torch::kFloat64), k = torch::randn({1, 2, 30, 4}, torch::kFloat64);
  const std::vector<Tensor> trees = {balanced(30, 2), balanced(30, 3), balanced(30, 5), balanced(30, 6)};
  const Tensor lse = torch::logsumexp(torch::matmul(q, k.transpose(-1, -2)) / 2, -1);
  const TreeChoice choice = best_tree(q, k, trees);
  std::vector<double> gaps;
  for (const Tensor& tree : trees) gaps.push_back(kl_gap(lse, hierarchy_score(q, k, {tree})).sum().item<double>());
  EXPECT_EQ(choice.index, std::min_element(gaps.begin(), gaps.end()) - gaps.begin());
  EXPECT_GT(*std::min_element(gaps.begin(), gaps.end()), 0);
  EXPECT_EQ(best_tree(q, k, trees, {}, 120).index, 0);  // only the cheapest fits
  expect_error([&] { best_tree(q, k, trees, {}, 10); }, "the cost of the cheapest candidate, got 10");
  expect_error([&] { best_tree(q, k, {}); }, "candidates: expected at least one tree");
}

}  // namespace
}  // namespace strata
