// A tiny modern decoder, the block of today's open models: RMSNorm, causal attention with rotary positions and grouped
// heads, SwiGLU, no biases. It learns a proverb by heart and writes it down with its caches, one token at a time.
#include <strata/model/hkt_attention.h>
#include <strata/model/hkt_cache.h>
#include <strata/model/modern.h>

#include <iostream>

using torch::Tensor;

constexpr int64_t kSize = 64, kHeads = 4, kKeyHeads = 2, kWidth = 176;  // 8/3 of the size, a multiple of 8

//   x' = x + attention(norm(x)),   x'' = x' + ffn(norm(x'))
struct Block : torch::nn::Module {
  Block()
      : attention_norm(register_module("attention_norm", strata::RmsNorm(kSize))),
        attention(register_module("attention", strata::HktAttention(strata::HktAttentionOptions(kSize, kHeads)
                                                                        .key_heads(kKeyHeads)
                                                                        .levels(2)
                                                                        .rotary(kSize / kHeads)
                                                                        .causal(true)))),
        ffn_norm(register_module("ffn_norm", strata::RmsNorm(kSize))),
        ffn(register_module("ffn", strata::SwiGlu(kSize, kWidth))) {}

  Tensor forward(Tensor x) {  // (batch, tokens, size)
    x = x + attention(attention_norm(x));
    return x + ffn(ffn_norm(x));
  }
  Tensor step(Tensor x, strata::HktCache& cache) {  // (batch, size): one token, after those in the cache
    x = x + attention->step(attention_norm(x), cache);
    return x + ffn(ffn_norm(x));
  }

  strata::RmsNorm attention_norm;
  strata::HktAttention attention;
  strata::RmsNorm ffn_norm;
  strata::SwiGlu ffn;
};

int main() {
  torch::manual_seed(0);
  const std::string proverb = "A rolling stone gathers no moss, and a watched pot never boils. ";
  const Tensor text = torch::tensor(std::vector<int64_t>(proverb.begin(), proverb.end()));

  torch::nn::Embedding embedding(256, kSize);
  std::vector<std::shared_ptr<Block>> blocks = {std::make_shared<Block>(), std::make_shared<Block>()};
  strata::RmsNorm norm(kSize);
  torch::nn::Linear head(torch::nn::LinearOptions(kSize, 256).bias(false));
  torch::nn::ModuleList all(embedding, blocks[0], blocks[1], norm, head);

  torch::optim::AdamW optimizer(all->parameters(), torch::optim::AdamWOptions(3e-3));
  double loss = 0;
  for (int step = 0; step < 60; ++step) {
    Tensor x = embedding(text.slice(0, 0, -1)).unsqueeze(0);
    for (auto& block : blocks) x = block->forward(x);
    const Tensor error = torch::nn::functional::cross_entropy(head(norm(x))[0], text.slice(0, 1));
    optimizer.zero_grad();
    error.backward();
    optimizer.step();
    loss = error.item<double>();
  }

  torch::NoGradGuard no_grad;
  std::vector<strata::HktCache> caches;
  for (auto& block : blocks) caches.push_back(block->attention->prefill(torch::zeros({1, 0, kSize})).second);
  int64_t token = proverb[0];
  std::string written(1, proverb[0]);
  while (written.size() < proverb.size()) {
    Tensor x = embedding(torch::tensor({token}));
    for (size_t layer = 0; layer < blocks.size(); ++layer) x = blocks[layer]->step(x, caches[layer]);
    token = head(norm(x)).argmax().item<int64_t>();
    written += static_cast<char>(token);
  }
  std::cout << "loss " << (loss < 0.1 ? "below 0.1" : std::to_string(loss)) << ": " << written << "\n";
}
