// run_module IN OUT: makes the HktAttention that IN's metadata describes, loads its parameters from IN, runs the tensor
// "x" of IN through it and writes "y" and the parameters to OUT. The Python tests use it to compare the two modules.
#include <cstdio>
#include <filesystem>

#include "model/hkt_attention.h"
#include "model/safetensors.h"

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: run_module IN.safetensors OUT.safetensors\n");
    return 2;
  }
  using namespace strata;
  SafetensorsFile in = load_safetensors(argv[1]);
  auto number = [&](const char* key) { return std::stoll(in.metadata.at(key)); };
  auto flag = [&](const char* key) { return in.metadata.at(key) == "True"; };
  HktAttention module(HktAttentionOptions(number("model_size"), number("heads"))
                          .key_heads(number("key_heads"))
                          .levels(number("levels"))
                          .taps(number("taps"))
                          .dense_filters(flag("dense_filters"))
                          .input_filter(flag("input_filter"))
                          .per_level_projections(flag("per_level_projections"))
                          .psd(flag("psd"))
                          .projection_bias(flag("projection_bias"))
                          .causal(flag("causal")));
  torch::Tensor x;
  NamedTensors parameters;
  for (const auto& [name, tensor] : in.tensors) {
    if (name == "x") {
      x = tensor;
    } else {
      parameters.emplace_back(name, tensor);
    }
  }
  const std::string only_parameters = std::string(argv[2]) + ".parameters";
  save_safetensors(only_parameters, parameters);
  load_module(*module, only_parameters);
  std::filesystem::remove(only_parameters);
  torch::NoGradGuard no_grad;
  NamedTensors out = {{"y", module->forward(x)}};
  for (const auto& item : module->named_parameters()) out.emplace_back(item.key(), item.value());
  save_safetensors(argv[2], out);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "run_module: %s\n", error.what());
  return 1;
}
