// All levels at once against level by level, with gradients, on the CPU and on a GPU.
#include <gtest/gtest.h>

#include "model/hkt_attention.h"
#include "torch/compat.h"
#include "torch/hkt_op.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using torch::Tensor;

struct ProjectCase {
  HktAttentionOptions options;
  int64_t batch, tokens;
  std::vector<int64_t> lengths;  // empty: none
};

std::vector<ProjectCase> project_cases() {
  const HktAttentionOptions base(16, 4);
  return {{HktAttentionOptions(base), 2, 37, {37, 20}},
          {HktAttentionOptions(base).levels(1), 2, 9, {3, 9}},
          {HktAttentionOptions(base).levels(2).key_heads(2), 3, 65, {64, 1, 65}},
          {HktAttentionOptions(base).levels(4).rotary(2), 1, 130, {}},
          {HktAttentionOptions(base).levels(5).key_heads(1), 2, 131, {131, 0}},
          {HktAttentionOptions(base).levels(3), 1, 1, {}},
          {HktAttentionOptions(base).levels(6), 1, 70, {69}},        // more levels than are made at once
          {HktAttentionOptions(base).levels(3).taps(2), 2, 20, {}},  // other filters than those
          {HktAttentionOptions(136, 2).levels(3), 1, 200, {150}}};
}

struct Results {
  Tensor y;
  std::vector<Tensor> gradients;  // of x and all parameters
};

using Forward = std::function<Tensor(HktAttention& module, const Tensor& x, const c10::optional<Tensor>& lengths)>;

Results run(const ProjectCase& spec, const Forward& forward, torch::Device device = torch::kCPU,
            at::ScalarType type = torch::kDouble) {
  torch::manual_seed(5);
  HktAttention module(spec.options);
  module->to(torch::kDouble);
  {
    torch::NoGradGuard no_grad;
    for (Tensor& p : module->parameters()) p.add_(0.3 * torch::randn_like(p));
  }
  Tensor x = torch::randn({spec.batch, spec.tokens, spec.options.model_size()}, torch::kDouble);
  const Tensor dy = torch::randn_like(x).to(device, type);
  c10::optional<Tensor> lengths;
  if (!spec.lengths.empty()) {
    lengths = torch::tensor(spec.lengths);
    for (int64_t b = 0; b < spec.batch; ++b)  // nothing may read the padding
      x[b].slice(0, spec.lengths[b]).fill_(std::numeric_limits<double>::quiet_NaN());
    lengths = lengths->to(device);
  }
  x = x.to(device, type).set_requires_grad(true);
  module->to(device);
  module->to(type);
  std::vector<Tensor> inputs = {x};
  for (const Tensor& p : module->parameters()) inputs.push_back(p);
  const Tensor y = forward(module, x, lengths);
  return {y, torch::autograd::grad({y}, inputs, {dy}, c10::nullopt, false, /*allow_unused=*/true)};
}

Tensor at_once(HktAttention& module, const Tensor& x, const c10::optional<Tensor>& lengths) {
  return module->forward(x, lengths);
}

Tensor level_by_level(HktAttention& module, const Tensor& x, const c10::optional<Tensor>& lengths) {
  Tensor real = x;
  HktOptions options;
  if (lengths.has_value()) {
    real = x.masked_fill((torch::arange(x.size(1), lengths->options()) >= lengths->unsqueeze(1)).unsqueeze(-1), 0);
    options.lengths = *lengths;
  }
  std::vector<Tensor> q, k;
  const std::vector<Tensor> states = module->pyramid(real);
  for (size_t l = 0; l < states.size(); ++l) {
    auto [query, key] = module->project(states[l], static_cast<int64_t>(l));
    q.push_back(query);
    k.push_back(key);
  }
  const auto parameters = module->named_parameters();
  const Tensor v = torch::linear(real, parameters["value.weight"])
                       .view({x.size(0), x.size(1), k[0].size(1), module->head_size()})
                       .transpose(1, 2);
  const auto compute = v.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const Tensor mixed = std::get<0>(hkt_attention(q, k, v, module->level_weights().to(compute), options));
  return torch::linear(mixed.transpose(1, 2).reshape(x.sizes()), parameters["out.weight"]);
}

void expect_close(const Results& got, const Results& want, double tolerance, const ProjectCase& spec) {
  auto close = [&](const Tensor& a, const Tensor& b, const std::string& what) {
    ASSERT_EQ(a.defined(), b.defined()) << what;
    if (!a.defined()) return;
    const Tensor wide = b.to(torch::kCPU, torch::kDouble), error = a.to(torch::kCPU, torch::kDouble) - wide;
    EXPECT_LE(error.norm().item<double>(), tolerance * (1e-3 + wide.norm().item<double>()))
        << what << ", levels " << spec.options.levels() << ", tokens " << spec.tokens;
  };
  close(got.y, want.y, "y");
  for (size_t n = 0; n < want.gradients.size(); ++n)
    close(got.gradients[n], want.gradients[n], "gradient " + std::to_string(n));
}

TEST(HktProject, AtOnceIsLevelByLevel) {
  for (const ProjectCase& spec : project_cases())
    expect_close(run(spec, at_once), run(spec, level_by_level), 1e-11, spec);
}

TEST(HktProject, CastsAsLevelByLevelDoes) {
  const ProjectCase spec = project_cases()[0];
  auto cast = [](const Forward& forward) {
    return [forward](HktAttention& module, const Tensor& x, const c10::optional<Tensor>& lengths) {
      const AutocastGuard autocast(true, x.device().type());
      const Tensor y = forward(module, x, lengths);
      EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
      return y.to(x.scalar_type());
    };
  };
  const Results exact = run(spec, level_by_level);
  for (const Forward& forward : {Forward(at_once), Forward(level_by_level)})
    expect_close(run(spec, cast(forward), torch::kCPU, torch::kFloat), exact, 3e-2, spec);
  if (!built_with_cuda() || !torch::cuda::is_available()) return;
  expect_close(run(spec, cast(at_once), torch::kCUDA, torch::kFloat), exact, 3e-2, spec);
}

TEST(HktProject, OnAGpuAsOnTheCpu) {
  if (!built_with_cuda() || !torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU here, or no CUDA kernels";
  for (const ProjectCase& spec : project_cases()) {
    const Results want = run(spec, level_by_level);
    expect_close(run(spec, at_once, torch::kCUDA), want, 1e-11, spec);
    const Results got = run(spec, at_once, torch::kCUDA, torch::kFloat),
                  again = run(spec, at_once, torch::kCUDA, torch::kFloat);
    expect_close(got, want, 2e-3, spec);  // torch may multiply in TF32
    for (size_t n = 0; n < got.gradients.size(); ++n)
      EXPECT_TRUE(!got.gradients[n].defined() || torch::equal(got.gradients[n], again.gradients[n])) << n;
  }
}

}  // namespace
}  // namespace strata
