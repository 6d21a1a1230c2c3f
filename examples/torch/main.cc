// HktAttention in a libtorch program.
#include <strata/model/hkt_attention.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  strata::HktAttention attention(strata::HktAttentionOptions(64, 4).levels(3).causal(true));
  torch::Tensor x = torch::randn({2, 100, 64});
  torch::Tensor y = attention->forward(x);
  y.pow(2).mean().backward();
  std::cout << attention << "\noutput " << y.sizes() << ", weights of head 0:";
  for (int level = 0; level < 3; ++level) std::cout << " " << attention->level_weights()[0][level].item<float>();
  std::cout << ", gradient norm of the first filter "
            << attention->named_parameters()["filter_1"].grad().norm().item<float>() << "\n";

  // One token after the other: a cache, and a token that is taken back.
  auto [rows, cache] = attention->prefill(x, c10::nullopt, strata::HktCacheOptions().capacity(500).history(8));
  const torch::Tensor token = torch::randn({2, 64});
  const torch::Tensor next = attention->step(token, cache);
  cache.crop(-1);
  std::cout << "a step gives " << next.sizes() << ", again: " << torch::allclose(next, attention->step(token, cache))
            << "\n";
}
