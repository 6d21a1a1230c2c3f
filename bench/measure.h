// Timing side by side: every round times each contender once, so that whatever else the machine does hits all alike. An
// untimed run goes before each timed one, or a contender would pay for the caches and memory its predecessor left.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "torch/hkt_op.h"
#include "util/statistics.h"

namespace strata::bench {

inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

using Contenders = std::vector<std::pair<std::string, std::function<void()>>>;

// Median seconds of each contender.
inline std::map<std::string, double> race(const Contenders& contenders, int rounds) {
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round < rounds; ++round) {
    for (const auto& [name, work] : contenders) {
      work();
      times[name].push_back(seconds_of(work));
    }
  }
  std::map<std::string, double> medians;
  for (const auto& [name, seconds] : times) medians[name] = median(seconds);
  return medians;
}

// Random inputs of the operator; they ask for gradients.
struct Attention {
  Attention(int64_t heads, int64_t tokens, int64_t levels, int64_t head_size, bool causal_ = false,
            torch::ScalarType type = torch::kFloat32) {
    auto random = [&](int64_t rows) { return torch::randn({1, heads, rows, head_size}).to(type); };
    for (int64_t l = 0; l < levels; ++l) {
      const int64_t rows = (tokens + (int64_t{1} << l) - 1) >> l;
      q.push_back(random(rows).set_requires_grad(true));
      k.push_back(random(rows).set_requires_grad(true));
    }
    v = random(tokens).set_requires_grad(true);
    weights = torch::full({heads, levels}, 1.0 / static_cast<double>(levels)).set_requires_grad(true);
    dout = random(tokens);
    options.causal = causal_;
  }

  std::vector<torch::Tensor> inputs() const {
    std::vector<torch::Tensor> all = q;
    all.insert(all.end(), k.begin(), k.end());
    all.insert(all.end(), {v, weights});
    return all;
  }

  torch::Tensor fused() const { return std::get<0>(hkt_attention(q, k, v, weights, options)); }

  // Forward without a graph, and forward with backward, of any way to compute the output.
  static std::function<void()> forward(std::function<torch::Tensor()> output) {
    return [output = std::move(output)] {
      torch::NoGradGuard no_grad;
      output();
    };
  }
  std::function<void()> forward_backward(std::function<torch::Tensor()> output) const {
    return [this, output = std::move(output)] { torch::autograd::grad({output()}, inputs(), {dout}); };
  }

  std::vector<torch::Tensor> q, k;
  torch::Tensor v, weights, dout;
  HktOptions options;
};

}  // namespace strata::bench
