// Pretrained transformers from Hugging Face folders: encoders of the BERT and RoBERTa families (MiniLM is one), and
// the language models GPT-2, Llama and Qwen2.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hub/pretrained_config.h"
#include "tokenizer/tokenizer.h"

namespace strata {

// softmax(scale q k^T) v, or its replacement. q: (batch, heads, tokens, channels); k, v: (batch, key heads, tokens,
// channels), rotated where the model has rotary positions; lengths: (batch), tokens of each sequence; layer: the index
// of the calling layer.
using AttentionFunction = std::function<torch::Tensor(int64_t layer, const torch::Tensor& q, const torch::Tensor& k,
                                                      const torch::Tensor& v, const torch::Tensor& lengths)>;

class Pretrained {
 public:
  // config.json, and model.safetensors or the files that model.safetensors.index.json names, mapped into memory; half
  // precision becomes float32. Throws Error (kData).
  static Pretrained load(const std::filesystem::path& folder, bool check_digest = true);
  // A model of this shape with random weights and no classes, for measuring time, which does not depend on the weights.
  static Pretrained seeded(const PretrainedConfig& config, uint64_t seed);

  // The word embeddings of an encoder alone: (vocabulary, hidden), float32. Throws Error (kData).
  static torch::Tensor load_words(const std::filesystem::path& folder, const PretrainedConfig& config);

  // The states of every token after each layer: states[0] are the embeddings, the last ones are the output of the model
  // (of language models after the final norm). ids: (batch, tokens); padding after `lengths` may hold any id.
  // first: the position of the first token, for a causal model whose attention caches the tokens before.
  std::vector<torch::Tensor> hidden_states(const torch::Tensor& ids, const torch::Tensor& lengths,
                                           int64_t first = 0) const;
  // Mean of the last hidden states over the real tokens: the embedding of a sentence encoder.
  torch::Tensor mean_pooled(const torch::Tensor& hidden, const torch::Tensor& lengths) const;
  // The model's own heads: classes from the first token, or the next token's logits. Empty without such a head.
  bool has_classes() const { return classes_.weight.defined(); }
  torch::Tensor class_logits(const torch::Tensor& hidden) const;
  torch::Tensor next_token_logits(const torch::Tensor& hidden) const;

  void to(const torch::Device& device);
  void to(torch::ScalarType type);

  // Softmax attention, unless replaced.
  AttentionFunction attention;

  const PretrainedConfig& config() const { return config_; }

 private:
  struct Linear {
    torch::Tensor weight, bias;  // (out, in)
    torch::Tensor operator()(const torch::Tensor& x) const;
  };
  struct Norm {
    torch::Tensor weight, bias;
  };
  struct Layer {
    Linear query, key, value, out, gate, widen, narrow;  // gate: of Llama and Qwen2
    Norm attention_norm, ffn_norm;
  };
  class Reader;

  torch::Tensor norm(const Norm& norm, const torch::Tensor& x) const;
  torch::Tensor activate(const torch::Tensor& x) const;
  torch::Tensor attend(int64_t index, const Layer& layer, const torch::Tensor& x, const torch::Tensor& lengths,
                       int64_t first) const;
  torch::Tensor feed(const Layer& layer, const torch::Tensor& x) const;
  void move_all(const std::function<torch::Tensor(const torch::Tensor&)>& move);
  void read_all(const Reader& reader);
  void read_bert(const Reader& reader);
  void read_gpt2(const Reader& reader);
  void read_modern(const Reader& reader);

  PretrainedConfig config_;
  torch::Tensor words_, positions_, types_;
  torch::Tensor head_;         // of next tokens; undefined: the words
  torch::Tensor frequencies_;  // (head size / 2), of rotary positions
  Norm embedding_norm_;        // of language models the final norm
  std::vector<Layer> layers_;
  Linear pooler_, dense_, classes_;
};

// config.json of a model's folder. Throws Error (kData).
PretrainedConfig read_pretrained_config(const std::filesystem::path& folder);

// The tokenizer in a model's folder. Throws Error (kData) if it has tokens that the model lacks.
Tokenizer tokenizer_of(const std::filesystem::path& folder, const PretrainedConfig& config);

// Flat softmax attention on our kernels.
AttentionFunction softmax_attention(bool causal);

}  // namespace strata
