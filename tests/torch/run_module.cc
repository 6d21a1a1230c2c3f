// run_module IN OUT: makes the module that IN's metadata describes (module = hkt, hsa or strata), loads its parameters
// from IN, runs the tensor "x" of IN through it and writes "y" and the parameters to OUT; with "prefill" in the
// metadata instead the cache behind so many tokens of x, and with "level_weights" also the level weights that the
// module had before it loaded any. The Python tests use it to compare the modules.
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "model/hkt_attention.h"
#include "model/hsa_attention.h"
#include "model/safetensors.h"
#include "model/strata_attention.h"

namespace strata {
namespace {

constexpr int64_t kHistory = 4;  // of caches

// The parameters and x of the file; the rest of the work is the same for every module.
template <class Module, class Forward, class Prefill>
void run(Module& module, const SafetensorsFile& in, const std::string& path, const Forward& forward,
         const Prefill& prefill) {
  torch::Tensor x, made_weights;
  if (in.metadata.count("level_weights") > 0)
    made_weights = module.named_parameters()["level_logits"].detach().softmax(-1);
  NamedTensors parameters, trees;
  for (const auto& [name, tensor] : in.tensors) {
    if (name == "x") {
      x = tensor;
    } else {
      (name.rfind("tree", 0) == 0 ? trees : parameters).emplace_back(name, tensor);
    }
  }
  const std::string only_parameters = path + ".parameters";
  save_safetensors(only_parameters, parameters);
  load_module(module, only_parameters);
  std::filesystem::remove(only_parameters);
  torch::NoGradGuard no_grad;
  if (in.metadata.count("prefill") > 0)
    return save_safetensors(path, prefill(x.narrow(1, 0, std::stoll(in.metadata.at("prefill")))));
  NamedTensors out = {{"y", forward(x, trees)}};
  for (const auto& item : module.named_parameters()) out.emplace_back(item.key(), item.value());
  if (made_weights.defined()) out.emplace_back("made_weights", made_weights);
  save_safetensors(path, out);
}

std::vector<torch::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<torch::Tensor> tensors;
  for (const auto& item : named) tensors.push_back(item.second);
  return tensors;
}

void run_described(const SafetensorsFile& in, const std::string& path) {
  auto number = [&](const char* key) { return std::stoll(in.metadata.at(key)); };
  auto flag = [&](const char* key) { return in.metadata.at(key) == "True"; };
  if (in.metadata.at("module") == "hsa") {
    HsaAttention module(HsaAttentionOptions(number("model_size"), number("heads"))
                            .streaming(flag("streaming"))
                            .branching(number("branching"))
                            .causal(flag("causal"))
                            .l2_energy(flag("l2_energy"))
                            .normalize(flag("normalize"))
                            .positions(in.metadata.at("positions"))
                            .tables(number("tables"))
                            .places(number("places"))
                            .rotary(number("rotary")));
    run(
        *module, in, path,
        [&](const torch::Tensor& x, const NamedTensors& trees) { return module->forward(x, tensors_of(trees)); },
        [&](const torch::Tensor& x) { return module->prefill(x, c10::nullopt, 10, kHistory).second.state(); });
    return;
  }
  std::vector<double> level_weights;
  if (const auto given = in.metadata.find("level_weights"); given != in.metadata.end()) {
    std::istringstream text(given->second);
    for (double weight; text >> weight;) level_weights.push_back(weight);
  }
  const HktAttentionOptions pyramid = HktAttentionOptions(number("model_size"), number("heads"))
                                          .key_heads(number("key_heads"))
                                          .levels(number("levels"))
                                          .taps(number("taps"))
                                          .dense_filters(flag("dense_filters"))
                                          .input_filter(flag("input_filter"))
                                          .per_level_projections(flag("per_level_projections"))
                                          .fixed_level_weights(level_weights)
                                          .psd(flag("psd"))
                                          .projection_bias(flag("projection_bias"))
                                          .causal(flag("causal"))
                                          .rotary(number("rotary"));
  if (in.metadata.at("module") == "strata") {
    const std::string& form = in.metadata.at("form");
    StrataAttention module(StrataAttentionOptions(number("model_size"), number("heads"))
                               .pyramid(pyramid)
                               .form(form == "tree"        ? StrataForm::kTree
                                     : form == "streaming" ? StrataForm::kStreaming
                                                           : StrataForm::kBothSides)
                               .branching(number("branching"))
                               .near(number("near"))
                               .positions(in.metadata.at("positions"))
                               .tables(number("tables"))
                               .places(number("places")));
    run(
        *module, in, path,
        [&](const torch::Tensor& x, const NamedTensors& trees) { return module->forward(x, tensors_of(trees)); },
        [&](const torch::Tensor& x) { return module->prefill(x, c10::nullopt, 10, kHistory).second.state(); });
    return;
  }
  HktAttention module(pyramid);
  run(
      *module, in, path, [&](const torch::Tensor& x, const NamedTensors&) { return module->forward(x); },
      [&](const torch::Tensor& x) {
        return module->prefill(x, c10::nullopt, HktCacheOptions().history(kHistory)).second.state();
      });
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: run_module IN.safetensors OUT.safetensors\n");
    return 2;
  }
  strata::run_described(strata::load_safetensors(argv[1]), argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "run_module: %s\n", error.what());
  return 1;
}
