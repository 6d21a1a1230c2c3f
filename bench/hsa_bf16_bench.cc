// HSA and Strata attention on the CPU in bfloat16: products in float32 over products of bfloat16 pairs, and float32
// inputs over both.
#include "bench/hsa_bf16_bench.h"

#include "bench/measure.h"
#include "strata/cpu.h"
#include "torch/hsa_op.h"

namespace strata::bench {
namespace {

constexpr int64_t kHeads = 8, kHeadSize = 64, kTokens = 16384;

using Run = std::function<torch::Tensor(const std::vector<torch::Tensor>&)>;

std::vector<torch::Tensor> inputs_of(torch::ScalarType type) {
  torch::manual_seed(1);
  std::vector<torch::Tensor> inputs;
  for (int i = 0; i < 3; ++i)
    inputs.push_back(torch::randn({1, kHeads, kTokens, kHeadSize}).to(type).set_requires_grad(true));
  return inputs;
}

Run on_tree(int64_t branching) {
  Tree tree;
  TORCH_CHECK(balanced_tree(kTokens, branching, Domain::kSet, &tree).ok());
  return [encoded = encode_tree(tree)](const std::vector<torch::Tensor>& x) {
    return std::get<0>(hsa_attention(x[0], x[1], x[2], {encoded}));
  };
}

Run in_stream(int near) {
  HsaStreamOptions options;
  options.near = near;
  return [options](const std::vector<torch::Tensor>& x) {
    return std::get<0>(hsa_stream_attention(x[0], x[1], x[2], options));
  };
}

// Forward, and forward with backward, on an instruction set.
void add(Contenders& contenders, const std::string& name, Isa isa, const Run& run,
         const std::vector<torch::Tensor>& inputs) {
  contenders.emplace_back(name, [=] {
    TORCH_CHECK(set_isa(isa).ok());
    torch::NoGradGuard no_grad;
    run(inputs);
  });
  contenders.emplace_back(name + "_both", [=] {
    TORCH_CHECK(set_isa(isa).ok());
    const torch::Tensor out = run(inputs);
    torch::autograd::grad({out}, inputs, {torch::ones_like(out)});
  });
}

}  // namespace

std::vector<Figure> hsa_bf16_figures(const Arguments& arguments) {
  const Isa pairs = supported_isas().back(), before = current_isa();
  if (pairs != Isa::kAvx512Bf16 && pairs != Isa::kAmx) {
    std::printf("hsa_cpu_bf16_*: skipped, this machine has neither AVX-512 BF16 nor AMX\n");
    return {};
  }
  const std::vector<torch::Tensor> wide = inputs_of(torch::kFloat32), half = inputs_of(torch::kBFloat16);
  std::vector<Figure> figures;
  for (const auto& [name, run] : std::vector<std::pair<std::string, Run>>{{"tree_b16", on_tree(16)},
                                                                          {"tree_b64", on_tree(64)},
                                                                          {"stream_near2", in_stream(2)},
                                                                          {"stream_near4", in_stream(4)}}) {
    Contenders contenders;
    add(contenders, "float32", Isa::kAvx512, run, wide);
    add(contenders, "bf16", Isa::kAvx512, run, half);
    add(contenders, "pairs", pairs, run, half);
    auto times = race(contenders, arguments.rounds);
    for (const char* kind : {"", "_both"}) {
      const std::string passes = *kind == '\0' ? "fwd" : "fwdbwd", figure = "hsa_cpu_bf16_" + name;
      figures.push_back({figure + "_float32_over_pairs_" + passes,
                         times[std::string("float32") + kind] / times[std::string("pairs") + kind], ""});
      figures.push_back({figure + "_float32_products_over_pairs_" + passes,
                         times[std::string("bf16") + kind] / times[std::string("pairs") + kind], ""});
    }
  }
  TORCH_CHECK(set_isa(before).ok());
  return figures;
}

}  // namespace strata::bench
